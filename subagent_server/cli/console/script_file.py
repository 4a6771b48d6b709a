"""The script that `--script FILE` names, as it is given to a run."""

from pathlib import Path

import click

from subagent_server.cli.console.flags import DIRECTORY
from subagent_server.cli.console.session import Session
from subagent_server.service.scripted import PlayedScript

script_option = click.option(
    "--script",
    type=DIRECTORY,
    metavar="FILE",
    help="Let this script play the model: no key is needed, and nothing is billed.",
)


def script_file(session: Session, file: Path | None) -> PlayedScript | None:
    """Return the script of a file, or None without a file.

    Raises:
        ScriptError: it cannot be read, or it is not a script.
    """
    if file is None:
        return None
    from subagent_server.simulator import script_text  # imports a server of HTTP

    path = session.settings.cwd / file
    return PlayedScript(path.name, script_text(path))
