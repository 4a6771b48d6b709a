"""The configuration files of MCP clients, which `init` edits."""
