"""Agent files become agent definitions."""
