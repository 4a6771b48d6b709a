"""Draws docs/screen.svg: what `subagent ls` shows on a terminal, of runs that are made for the picture.

`make picture` runs it. The command and its colours are real; the runs have no processes.
"""

import re
import sys
from contextlib import ExitStack
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from subagent_server.run import transitions
from subagent_server.run.processes import now
from subagent_server.run.records import Failure
from tests.cli.command import Cli, asked

COLUMNS = 100
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.S)


def ago(minutes: float) -> datetime:
    """Return the moment so many minutes before now."""
    return now() - timedelta(minutes=minutes)


def screen(home: Path) -> str:
    """Return what `subagent ls` prints on a terminal, with its colours."""
    cli = Cli(home)
    cli.store.make_root()
    with ExitStack() as stack:
        cli.completed("ubvpsv", text="approve: two nits, no bug", agent_name="reviewer", created_at=ago(190))
        failed = cli.made("k7p2mq", agent_name="triage", created_at=ago(1500))
        why = Failure(code="budget", message="The budget of $0.50 is used up.")
        cli.store.update(failed, transitions.RunFailed(failure=why), now())
        seek = {"agent_name": "scout", "label": "where discounts are computed", "created_at": ago(1)}
        stack.enter_context(cli.living("6thsa5", **seek))
        question = asked("Is the discount meant to be public yet?", "yes", "no")
        notes = {"agent_name": "changelog", "label": "notes for 1.4", "created_at": ago(4)}
        stack.enter_context(cli.living("95j2gs", question, **notes))
        return cli.on_screen("ls", columns=COLUMNS, keeps_colours=True)


def main() -> None:
    """Print the picture as SVG."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    with TemporaryDirectory() as directory:
        home = Path(directory, "shop")
        home.mkdir()
        console.print(Text.from_ansi(f"$ subagent ls\n{screen(home)}".rstrip()))
    drawn = console.export_svg(title="subagent ls", unique_id="screen")
    sys.stdout.write(_FONTS.sub("", drawn).rstrip() + "\n")


if __name__ == "__main__":
    main()
