"""One short module a family: which `model_type` it serves, its config and how its tensors are named."""
