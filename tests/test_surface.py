"""What people and programs see does not change by accident: help texts and file schemas, as snapshots.

After a change that is meant, write them anew: `SNAPSHOTS=write .venv/bin/pytest tests/test_surface.py`.
"""

import os
from pathlib import Path

import click
from click.testing import CliRunner

from subagent_server.cli.console.app import subagent
from tests.helpers.processes import REPOSITORY

SNAPSHOTS = REPOSITORY / "tests/surface"


def is_as_before(name: str, now: str) -> None:
    """Compare a text with its snapshot, or write the snapshot."""
    path: Path = SNAPSHOTS / name
    if os.environ.get("SNAPSHOTS") == "write":
        path.write_text(now, encoding="utf-8")
    assert now.splitlines() == path.read_text(encoding="utf-8").splitlines(), f"{path} differs"


def commands_of(group: click.Group, words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the words of each command of a group, and of its groups."""
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found.append((*words, name))
        if isinstance(command, click.Group):
            found.extend(commands_of(command, (*words, name)))
    return found


def said(*words: str) -> str:
    """Return what a command prints, which must succeed."""
    done = CliRunner().invoke(subagent, words, prog_name="subagent", terminal_width=100)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_help_of_every_command_is_as_before() -> None:
    texts = [said(*words, "--help") for words in [(), *commands_of(subagent, ())]]
    is_as_before("help.txt", "\n".join(texts))


def test_the_schemas_of_files_are_as_before() -> None:
    for what in ("meta", "request", "result"):
        is_as_before(f"{what}.schema.json", said("schema", what))
