"""The built-in agent on the Messages API, and the protocol of every runner."""
