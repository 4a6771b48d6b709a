"""Looking at runs: one, several, or the list."""

from contextlib import suppress

from subagent_server.domain import events
from subagent_server.domain.errors import (
    AmbiguousRun,
    MessageClosed,
    SubagentError,
    UnknownMessage,
    UnknownRun,
)
from subagent_server.domain.records import Record
from subagent_server.domain.states import MessageStatus, Status
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller, NotAllowed, check_open
from subagent_server.service.context import Service
from subagent_server.service.reconcile import Observed, observe
from subagent_server.service.views import RunView, elapsed_seconds, run_view, waits_for_slot

LATEST = "@last"


class RunRow(Record):
    """A run in a list. A run whose state cannot be read has only its id and `unreadable`."""

    run_id: str
    agent: str | None = None
    label: str | None = None
    status: Status | None = None
    pending_questions: int = 0
    live: bool | None = None
    elapsed_seconds: float | None = None
    waiting_for_slot: bool | None = None
    summary: str | None = None
    unreadable: str | None = None


def check_status(
    service: Service, run_id: str, message_id: str | None = None, caller: Caller = USER
) -> RunView:
    """Return the view of a run. A child that names its question acknowledges the answer it is shown.

    The view shows the state before the acknowledgement, with the answer (seed
    `bidirectional_communication.txt`, 3.4); a parent that only looks changes nothing.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, UnknownMessage, NotAllowed.
    """
    observed = open_run(service, run_id, caller)
    if message_id is None:
        return run_view(service.store, observed, own=caller.run_id == run_id)
    message = observed.meta.message(message_id)
    if message is None:
        raise UnknownMessage(run_id, message_id, [m.message_id for m in observed.meta.pending])
    view = run_view(service.store, observed, asked=message_id)
    if message.message_status is MessageStatus.REPLIED:
        with suppress(MessageClosed):  # the run ended meanwhile; the answer stays readable
            service.store.update(run_id, events.ReplyAcknowledged(message_id=message_id), now())
    return view


def open_run(service: Service, run_id: str, caller: Caller = USER) -> Observed:
    """Return a run, reconciled, if it is open to the caller.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    check_open(caller, service.store.read(run_id))
    return observe(service.store, run_id)


def list_runs(
    service: Service,
    *,
    status: Status | None = None,
    agent: str | None = None,
    limit: int = 20,
    caller: Caller = USER,
) -> list[RunRow]:
    """Return rows of runs: those that need an answer, then the live ones, then the newest of the others.

    A run whose state cannot be read is listed as such.
    """
    rows: list[RunRow] = []
    for run_id in service.store.run_ids():
        row = _row(service, run_id, caller)
        if row is not None and _wanted(row, status, agent):
            rows.append(row)
    return sorted(rows, key=_urgency)[:limit]


def find_run(service: Service, name: str) -> str:
    """Return the id of the run that a person names: its id, a unique prefix of it, or `@last`.

    Raises:
        UnknownRun, AmbiguousRun.
    """
    ids = service.store.run_ids()
    if name in ids:
        return name
    if name == LATEST:
        latest = next((run_id for run_id in ids if service.store.exists(run_id)), None)
        matches = [latest] if latest else []
    else:
        matches = [run_id for run_id in ids if name and run_id.startswith(name)]
    if not matches and name:
        matches = [run_id for run_id in ids if run_id.rsplit("-", 1)[-1] == name]
    if not matches:
        raise UnknownRun(name, service.settings.runs_root)
    if len(matches) > 1:
        raise AmbiguousRun(name, matches)
    return matches[0]


def _row(service: Service, run_id: str, caller: Caller) -> RunRow | None:
    try:
        observed = open_run(service, run_id, caller)
    except (UnknownRun, NotAllowed):
        return None  # a start that never was, or somebody else's
    except SubagentError as error:
        return RunRow(run_id=run_id, unreadable=error.sentence)
    meta = observed.meta
    return RunRow(
        run_id=meta.run_id,
        agent=meta.agent_name,
        label=meta.label,
        status=meta.status,
        pending_questions=meta.pending_questions,
        live=observed.live,
        elapsed_seconds=elapsed_seconds(meta, now()),
        waiting_for_slot=waits_for_slot(service.store, meta) or None,
        summary=(meta.error.message if meta.error else meta.summary),
    )


def _wanted(row: RunRow, status: Status | None, agent: str | None) -> bool:
    return (status is None or row.status is status) and (agent is None or row.agent == agent)


def _urgency(row: RunRow) -> int:
    if row.pending_questions:
        return 0
    return 2 if row.status is None or row.status.is_terminal else 1
