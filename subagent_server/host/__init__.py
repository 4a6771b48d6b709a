"""What is asked of the operating system. Knows nothing of runs."""
