"""Tool calls: what the formats look like, reading them out of a reply while it is written, and asking for them.

A format is one small file with a subclass of `ToolFormat` (see `format.py`), listed in `registry.py`.
"""
