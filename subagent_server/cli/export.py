"""`subagent export`: pack a run into one archive."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import BinaryIO, TypeVar

import click

from subagent_server.cli.console.complete import complete_runs
from subagent_server.cli.console.flags import TEXT
from subagent_server.cli.console.output import err, is_terminal, report
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import one_line
from subagent_server.domain.errors import BadArgument
from subagent_server.service.export_run import export as export_runs
from subagent_server.service.open_run import open_run
from subagent_server.service.tree_usage import subtree

T = TypeVar("T")


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    type=TEXT,
    metavar="FILE",
    help="A new file; `-` is stdout.  [default: ID.tgz, with --html ID.html]",
)
@click.option("--tree", is_flag=True, help="All runs below it, too.")
@click.option(
    "--html", is_flag=True, help="One file that a browser shows as the page does, in place of an archive."
)
@pass_session
def export(session: Session, run: str, output: str | None, tree: bool, html: bool) -> None:
    """Pack a run into one archive (tar, gzip), or show it in one HTML file.

    Its task, state, result, journal, log, conversation, inputs and outputs, without locks and marks. What is
    secret in the environment of this command is masked once more. Read it before you give it away: it holds
    what the agent has read.
    """
    meta = open_run(session.service, session.run_id(run), session.caller).meta
    if html:
        if tree:
            raise click.UsageError("--html shows one run: leave --tree out.")
        _as_html(session, meta.run_id, output or f"{meta.run_id}.html")
        return
    run_ids = [each.run_id for each in subtree(session.service.store, meta)] if tree else [meta.run_id]
    if output == "-":
        if is_terminal(sys.stdout):
            raise click.UsageError("An archive is no text for a terminal: name a file by -o.")
        left_out = export_runs(session.service, run_ids, sys.stdout.buffer, session.caller)
        sys.stdout.buffer.flush()
    else:
        left_out = _into_file(session, run_ids, output or f"{meta.run_id}.tgz")
    for sentence in left_out:
        report(one_line(sentence))


def _as_html(session: Session, run_id: str, name: str) -> None:
    from subagent_server.web.standalone import StandalonePage

    text = asyncio.run(StandalonePage(session.service, session.caller, run_id).html()).encode(
        "utf-8", "replace"
    )
    if name == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return
    _written(session, name, lambda file: file.write(text))


def _into_file(session: Session, run_ids: list[str], name: str) -> list[str]:
    return _written(session, name, lambda file: export_runs(session.service, run_ids, file, session.caller))


def _written(session: Session, name: str, write: Callable[[BinaryIO], T]) -> T:
    """Write a new file, which is removed again if it does not become whole. Raises BadArgument."""
    path = session.settings.cwd / name
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BadArgument(f"{one_line(name)} is there already: name another file by -o.") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            found = write(file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    err(f"{one_line(name)} is written, {path.stat().st_size:,} bytes.")
    return found
