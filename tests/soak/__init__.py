"""Runs that ask, nest, write and wait, and a killer among them: `python -m tests.soak`."""
