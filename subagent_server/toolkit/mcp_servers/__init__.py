"""The MCP servers of a run: connected, listed, called, restarted once, closed (SPEC section 8)."""
