"""jaxfold: one server that runs open chat models as compiled JAX programs, with exact replies."""
