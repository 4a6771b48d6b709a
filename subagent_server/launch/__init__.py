"""Launch a run: from the intent to a living worker, supervised by a shim."""
