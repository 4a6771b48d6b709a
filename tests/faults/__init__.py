"""The machine fails, and what is on disk stays true."""
