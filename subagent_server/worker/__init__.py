"""One run, from its directory to exactly one outcome."""
