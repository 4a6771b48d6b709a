"""Waiting until the processes of stopped runs are gone."""

from subagent_server.cli.console.session import Session
from subagent_server.cli.console.watch import wait_for
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed

STOP_WAIT_SECONDS = 12.0
"""A little more than the grace between TERM and KILL."""


def until_gone(session: Session, run_ids: list[str]) -> list[Observed]:
    """Return runs that were stopped, when no process of them lives or after 12 s."""

    def look() -> list[Observed]:
        return [open_run(session.service, run_id, session.caller) for run_id in run_ids]

    def check() -> list[Observed] | None:
        observed = look()
        return None if any(one.live for one in observed) else observed

    if not run_ids:
        return []
    return wait_for(session, run_ids, check, STOP_WAIT_SECONDS) or look()
