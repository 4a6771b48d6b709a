"""The MCP tools as parents and runs see them: one table, one dispatcher."""
