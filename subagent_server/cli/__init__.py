"""The command line, `subagent`: one file for each verb, each a thin door to `verbs/`.

`console/app.py` lists the verbs; the code that they share is in `console/`. `clients.py`, `client_files.py`
and `registration.py` are parts of `init`.
"""

from subagent_server.cli.console.app import main

__all__ = ["main"]
