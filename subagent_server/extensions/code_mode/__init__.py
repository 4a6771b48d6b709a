"""Code mode: the MCP tools of a run as functions of one Python program (SPEC section 9)."""
