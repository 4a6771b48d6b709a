"""Random and mutated input at every door: no traceback reaches anybody, and nothing hangs."""
