"""HTTP below every protocol: bodies, single fields, errors, answers on the wire."""
