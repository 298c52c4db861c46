"""Encoders: texts as token ids in, one vector each out. A small engine of its own beside the decoder's."""
