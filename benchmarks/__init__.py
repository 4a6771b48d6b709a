"""What `make bench` runs: each line is a ratio against a named baseline measured in the same run."""
