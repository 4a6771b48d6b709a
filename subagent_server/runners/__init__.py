"""How an agent thinks."""
