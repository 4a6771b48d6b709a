"""The rules of a run: pure data and decisions. No files, no clock, no processes."""
