"""The MCP tools as parents and runs see them: a `ToolSpec` each, a single table, a single dispatcher."""
