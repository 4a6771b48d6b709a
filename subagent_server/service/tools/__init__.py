"""The MCP tools as parents and runs see them: a `ToolSpec` each, one table, one dispatcher."""
