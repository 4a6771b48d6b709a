"""`subagent export`: pack a run into one archive."""

import os
import sys

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


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    type=TEXT,
    metavar="FILE",
    help="The archive, a new file; `-` is stdout.  [default: ID.tgz]",
)
@click.option("--tree", is_flag=True, help="All runs below it, too.")
@pass_session
def export(session: Session, run: str, output: str | None, tree: bool) -> None:
    """Pack a run into one archive (tar, gzip).

    Its task, state, result, journal, log, conversation, inputs and outputs, without locks and marks. What is
    secret in the environment of this command is masked once more. Read it before you give it away: it holds
    what the agent has read.
    """
    meta = open_run(session.service, session.run_id(run), session.caller).meta
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


def _into_file(session: Session, run_ids: list[str], name: str) -> list[str]:
    """Write a new file, which is removed again if it does not become whole. Raises BadArgument."""
    path = session.settings.cwd / name
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BadArgument(f"{one_line(name)} is there already: name another file by -o.") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            left_out = export_runs(session.service, run_ids, file, session.caller)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    err(f"{one_line(name)} is written, {path.stat().st_size:,} bytes.")
    return left_out
