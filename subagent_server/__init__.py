"""An MCP server that lets a parent agent hand focused work to subagents and stay in charge of it."""

__version__ = "0.1.0"
