"""The MCP server: a connection has handlers, which call the tools and verbs of the service."""
