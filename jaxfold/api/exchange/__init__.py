"""One request on its way in and its replies on their way out, whatever the protocol."""
