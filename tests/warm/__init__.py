"""What the warm process does before it forks."""
