"""Looking at runs: one, several, or the list."""

from contextlib import suppress
from itertools import islice
from pathlib import Path

from subagent_server.domain import events
from subagent_server.domain.errors import (
    AmbiguousRun,
    MessageClosed,
    UnknownMessage,
    UnknownRun,
)
from subagent_server.domain.ids import is_run_id
from subagent_server.domain.states import MessageStatus, Status
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller, check_open
from subagent_server.service.context import Service
from subagent_server.service.list_runs import Listing, RunRow, Wanted
from subagent_server.service.reconcile import Observed, observe
from subagent_server.service.views import RunView, run_view
from subagent_server.store.runs import RunStore
from subagent_server.store.stored import StoredRuns

LATEST = "@last"


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
    return _opened(service.store, run_id, caller)


def look_at(root: Path, run_id: str, caller: Caller = USER) -> Observed:
    """Return a run under `root`, reconciled, if it is open to the caller. Raises as `open_run` does."""
    return _opened(RunStore(root), run_id, caller)


def _opened(store: RunStore, run_id: str, caller: Caller) -> Observed:
    if caller.is_child:  # before anything is done to the run: to look at it may write how it ended
        check_open(caller, store.read(run_id))
    return observe(store, run_id)


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
    wanted = Wanted(frozenset() if status is None else frozenset({status}), agent)
    listing = Listing(service.store.paths, wanted, caller)
    return list(islice(listing.every(), limit))


def find_run(service: Service, name: str) -> str:
    """Return the id of the run that a person names: its id, a unique prefix of it, or `@last`.

    Raises:
        UnknownRun, AmbiguousRun.
    """
    root = service.store.paths
    if is_run_id(name) and root.run(name).directory.is_dir():
        return name
    stored = StoredRuns(root)
    if name == LATEST:
        matches = list(islice(filter(service.store.exists, stored.newest_first()), 1))
    else:
        matches = stored.starting_with(name) if name else []
    if not matches and name:
        matches = stored.ending_in(name)
    if not matches:
        raise UnknownRun(name, service.settings.runs_root)
    if len(matches) > 1:
        raise AmbiguousRun(name, matches)
    return matches[0]
