"""Kernels: a folder an operation, each with a plain reference, implementations and a dispatch that fails closed."""
