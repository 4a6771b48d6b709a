"""The command line, `subagent`: one file for each verb, each a thin door to the verbs of `service`.

Here are only verbs; `console/group.py` lists them. Code that they share is in `console/`; `clients/` edits
the files of MCP clients for `init`, and `mcp/` has the verbs of `subagent mcp`.
"""

from subagent_server.cli.console.app import main

__all__ = ["main"]
