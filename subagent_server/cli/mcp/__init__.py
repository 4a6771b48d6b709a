"""`subagent mcp`: tries the MCP servers of an agent."""
