"""Waiting until the processes of stopped runs are gone."""

import sys

import click

from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.output import err, is_terminal
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.watch import wait_for
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed

STOP_WAIT_SECONDS = 12.0
"""A little more than the grace between TERM and KILL."""
_SILENT_SECONDS = 1.5


def until_gone(session: Session, run_ids: list[str]) -> list[Observed]:
    """Return runs that were stopped, when no process of them lives or after 12 s.

    At a terminal, a remark says why this takes longer than a moment.
    """

    def look() -> list[Observed]:
        return [open_run(session.service, run_id, session.caller) for run_id in run_ids]

    def check() -> list[Observed] | None:
        observed = look()
        return None if any(one.live for one in observed) else observed

    if not run_ids:
        return []
    gone = wait_for(session, run_ids, check, _SILENT_SECONDS)
    if (
        gone is None
        and is_terminal(sys.stderr)
        and not click.get_current_context().ensure_object(Flags).as_json
    ):
        err("Stopped. The processes end within 12 s: a call of the model may finish, as it is billed anyway.")
    return gone or wait_for(session, run_ids, check, STOP_WAIT_SECONDS - _SILENT_SECONDS) or look()
