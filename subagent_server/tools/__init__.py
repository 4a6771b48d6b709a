"""The verbs as MCP tools: one table of `ToolSpec`."""
