"""The command line, `subagent`: one file per verb, each a thin door to the verbs of `service`."""

from subagent_server.cli.console.entry import main

__all__ = ["main"]
