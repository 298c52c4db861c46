"""Layers shared by the families: pure functions over arrays."""
