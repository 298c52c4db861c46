"""Kernels: one folder an operation, each with a plain reference, its implementations and a dispatch that fails closed."""
