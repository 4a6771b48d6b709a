"""What an agent can use."""
