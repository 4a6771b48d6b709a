"""The MCP servers of a run: connected at once, listed, called, mended once, closed (SPEC section 8)."""
