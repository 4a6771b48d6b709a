"""The command line, `subagent`: a file for each verb or family of verbs, each a thin door to `verbs/`.

`console/app.py` lists the verbs; the code that they share is in `console/`. `clients.py` and
`client_files.py` are parts of `init`.
"""

from subagent_server.cli.console.app import main

__all__ = ["main"]
