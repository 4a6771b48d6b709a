"""The MCP servers of a run, as tools of its agent (SPEC section 8)."""
