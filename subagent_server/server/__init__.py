"""The MCP server: tools, resources and notifications, over pipes and HTTP."""
