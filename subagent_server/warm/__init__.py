"""What the warm process does once, so that none of its forks has to."""
