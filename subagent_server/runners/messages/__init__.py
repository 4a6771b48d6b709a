"""The built-in loop on the Anthropic Messages API."""
