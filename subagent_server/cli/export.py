"""`subagent export`: write a run as an archive, a page, a log of Inspect or spans of OpenTelemetry."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from typing import BinaryIO, TypeVar

import click

from subagent_server.cli.console.app import Session, complete_runs, json_session, report
from subagent_server.cli.console.option_types import PATH_TEXT
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    is_terminal,
    one_line,
    output_failed,
)
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.run.files import held_open
from subagent_server.run.stderr import failpoint
from subagent_server.sandbox.quarantine import rename_new
from subagent_server.verbs.export_run import as_line, inspect_log, is_address, send
from subagent_server.verbs.export_run import export as export_runs
from subagent_server.verbs.export_run import otlp as otlp_of
from subagent_server.verbs.inputs import masker_at_door
from subagent_server.verbs.reconcile import subtree

T = TypeVar("T")


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    type=PATH_TEXT,
    metavar="FILE",
    help="A new file; `-` is stdout.  [default: ID.tgz, with --html ID.html]",
)
@click.option("--tree", is_flag=True, help="All runs below it, too.")
@click.option(
    "--html", is_flag=True, help="One file that a browser shows as the page does, instead of an archive."
)
@click.option(
    "--otlp",
    type=PATH_TEXT,
    metavar="FILE|URL",
    help="OpenTelemetry spans (OTLP/JSON) into a new file, or to a collector, instead of an archive.",
)
@click.option(
    "--inspect",
    type=PATH_TEXT,
    metavar="FILE",
    help="A log for Inspect's viewer (JSON), instead of an archive.",
)
@json_session
def export(
    session: Session,
    run: str,
    output: str | None,
    tree: bool,
    html: bool,
    otlp: str | None,
    inspect: str | None,
) -> None:
    """Pack a run into one archive (tar, gzip), or show it in one HTML file.

    Its task, state, result, journal, log, conversation, inputs and outputs, without locks and marks. What is
    secret in the environment of this command is masked once more. Read it before you give it away: it holds
    what the agent has read.
    """
    if sum((html, otlp is not None, inspect is not None)) > 1:
        raise click.UsageError("--html, --otlp and --inspect exclude each other: leave the others out.")
    if output is not None and (otlp or inspect):
        raise click.UsageError("--otlp and --inspect name their file themselves: leave -o out.")
    store = session.service.store
    meta = session.open_run(session.run_id(run)).meta
    metas = list(subtree(store, meta)) if tree else [meta]
    masker = masker_at_door(session.service, meta.run_id)
    if html:
        if tree:
            raise click.UsageError("--html shows one run: leave --tree out.")
        # Imported here: the page brings in the server, for which the other forms need not wait.
        from subagent_server.server.page.standalone import StandalonePage

        text = asyncio.run(StandalonePage(session.service, session.caller, meta.run_id).html())
        page = text.encode("utf-8", "replace")
        _written(session, output or f"{meta.run_id}.html", lambda file: file.write(page))
    elif inspect is not None:
        log = as_line(masker.data(inspect_log(store, metas)))
        _written(session, inspect, lambda file: file.write(log))
    elif otlp is not None:
        _as_spans(session, otlp, as_line(masker.data(otlp_of(store, metas, session.settings.environment))))
    else:
        run_ids = [each.run_id for each in metas]
        left_out = _written(
            session,
            output or f"{meta.run_id}.tgz",
            lambda file: export_runs(session.service, run_ids, file, session.caller),
        )
        for sentence in left_out:
            report(one_line(sentence))


def _as_spans(session: Session, target: str, spans: bytes) -> None:
    if not is_address(target):
        _written(session, target, lambda file: file.write(spans + b"\n"))
        return
    try:
        send(target, spans, session.settings.environment)
    except (OSError, ValueError) as error:
        why = f"The spans were not taken by {shorten(target)} ({error}): see that a collector listens there."
        raise EarlyExit(ExitCode.ENVIRONMENT, why) from error
    session.say_done({"sentTo": target}, "The spans were sent.")


def _written(session: Session, name: str, write: Callable[[BinaryIO], T]) -> T:
    """Write stdout (`-`), or a new file, which has its name only when it is whole.

    Raises BadArgument; stdout as `out` does.
    """
    if name == "-":
        if session.as_json:
            raise click.UsageError("-o - and --json both write stdout: name a file, or leave --json out.")
        if is_terminal(sys.stdout):  # also a form that is text holds what moves a cursor
            raise click.UsageError("What is exported is no text for a terminal: name a file.")
        try:
            with os.fdopen(1, "wb", closefd=False) as file:  # `sys.stdout` is None if it was closed
                return write(file)
        except OSError as error:
            raise output_failed(error) from error
    path = session.settings.cwd / name
    is_there = BadArgument(f"{one_line(name)} is there already: name another file.")
    if os.path.lexists(path):
        raise is_there
    # A file of that name is whole, also if this process is killed while it writes.
    partial = path.with_name(f".subagent-export-{secrets.token_hex(4)}.part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            found = write(file)
        failpoint("export.written")
        with held_open(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)) as directory:
            rename_new(directory, partial.name, directory, path.name)
    except FileExistsError as error:  # it came meanwhile
        raise is_there from error
    finally:
        partial.unlink(missing_ok=True)
    size = path.stat().st_size
    session.say_done({"file": str(path), "bytes": size}, f"{one_line(name)} is written, {size:,} bytes.")
    return found
