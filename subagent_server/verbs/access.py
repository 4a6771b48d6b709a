"""The caller of a verb, and the runs that are open to it (SPEC sections 5 and 13).

The caller of the parent tools is trusted as the user is. A child proves itself with the token of its run,
whose hash is in the meta file. The token opens this run and the runs started by it, and nothing else.
"""

import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from subagent_server.run import processes
from subagent_server.run.errors import (
    AmbiguousRun,
    BadArgument,
    CallerError,
    SubagentError,
    UnknownRun,
    visible,
)
from subagent_server.run.processes import Identity, this_process
from subagent_server.run.records import RunMeta, StartedBy
from subagent_server.run.states import MAX_LABEL_CHARACTERS, MAX_LENGTH, cut, is_run_id
from subagent_server.run.store import RunStore
from subagent_server.settings import Settings
from subagent_server.verbs.service import Service


class NotAllowed(CallerError):
    """A child reached for a run that is not its own."""

    code = "not_allowed"


@dataclass(frozen=True)
class Caller:
    """The caller of a verb: the user's side (`run_id` None), or the child that is run `run_id`.

    `carries_on` are the earlier runs whose conversation this run continues, the first of them first: the
    runs they had started are open to the child too. `process` is the process through which the user's side
    calls: the runs that it starts are that parent's as long as it lives. `parent` separates parents of one
    process: the name of a token.
    """

    run_id: str | None = None
    carries_on: tuple[str, ...] = ()
    process: Identity | None = None
    parent: str | None = None

    @property
    def is_child(self) -> bool:
        """Whether the caller is a run."""
        return self.run_id is not None

    def may_open(self, meta: RunMeta) -> bool:
        """Whether this run is the caller's own or was started by the caller."""
        if self.run_id is None or self.run_id in (meta.run_id, meta.parent_run_id):
            return True
        return meta.parent_run_id in self.carries_on


USER = Caller()


def user_here() -> Caller:
    """Return the user's side as the caller, through this process."""
    return Caller(process=this_process())


def new_token() -> str:
    """Return a new token, too long to guess."""
    return secrets.token_urlsafe(24)


def token_hash(token: str) -> str:
    """Return the hash of a token, which is stored instead of the token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def run_as_caller(store: RunStore, run_id: str) -> Caller:
    """Return a run as the caller of a verb.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta.
    """
    before: list[str] = []
    older = store.read(run_id).continues_run_id
    while older is not None and older not in before:
        before.append(older)
        try:
            older = store.read(older).continues_run_id
        except SubagentError:
            break  # it was removed, or is damaged: what it had started is not opened by it
    return Caller(run_id, tuple(reversed(before)))


def caller_of(settings: Settings, store: RunStore) -> Caller:
    """Return the caller named by the environment of this process.

    Raises:
        NotAllowed: the environment names a run, but its token is not the run's.
    """
    run_id, token = settings.child_run_id, settings.child_token
    if run_id is None and token is None:
        return user_here()
    try:
        expected = store.read(run_id or "").child_token_hash or ""
    except SubagentError as error:
        raise NotAllowed(f"SUBAGENT_RUN_ID names no run that can be read here: {error.sentence}") from error
    if not hmac.compare_digest(expected.encode("utf-8", "replace"), token_hash(token or "").encode()):
        raise NotAllowed(
            f"SUBAGENT_RUN_TOKEN does not open run {run_id}: unset SUBAGENT_RUN_ID and SUBAGENT_RUN_TOKEN "
            "to act as the user, or use the environment that the run was given."
        )
    return run_as_caller(store, str(run_id))


def check_open(caller: Caller, meta: RunMeta) -> None:
    """Refuse a child access to any run except its own run and the runs started by its own.

    Raises:
        NotAllowed.
    """
    if not caller.may_open(meta):
        raise NotAllowed(
            f"Run {meta.run_id} is not open to run {caller.run_id}: a subagent reaches its own run "
            "and those it started."
        )


# -- Whose a run is: its parent's, for as long as the process lives through which the parent started it.
#
# A parent gets the news of its own runs, and of the runs whose parent has gone: nothing is lost with a
# server, and two parents of one root do not answer each other's questions.


COMMAND_LINE = "command line"
"""The client of the runs that a person starts in a terminal."""


class OtherParents:
    """The other parents of this root, as a caller sees them. Each process is checked once."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._alive: dict[Identity, bool] = {}

    def own(self, starter: StartedBy | None) -> bool:
        """Whether the run of this starter is another parent's.

        It is nobody's if no process is on record, or if that process is not proved to live here. Which runs a
        child reaches is decided by their parent run alone.
        """
        if starter is None or self._caller.is_child or self._is_caller(starter):
            return False
        return self._is_alive(starter)

    def name(self, starter: StartedBy | None) -> str | None:
        """Return the words for the process through which a tree was started, and its client."""
        if starter is None:
            return None
        if self._is_caller(starter):
            return "you"
        client = visible(cut(starter.client or "a client", MAX_LABEL_CHARACTERS))
        if starter.parent is not None:
            client = f"{client} as {visible(cut(starter.parent, MAX_LABEL_CHARACTERS))}"
        if starter.host != processes.host_name():
            return f"{client} on another host"
        return f"{client}, process {starter.pid}" if self._is_alive(starter) else f"{client}, gone"

    def _is_caller(self, starter: StartedBy) -> bool:
        return (_process(starter), starter.parent) == (self._caller.process, self._caller.parent)

    def _is_alive(self, starter: StartedBy) -> bool:
        process = _process(starter)
        if process not in self._alive:
            self._alive[process] = processes.is_alive(process)
        return self._alive[process]


def _process(starter: StartedBy) -> Identity:
    return Identity(starter.host, starter.pid, starter.start_time, starter.boot_id)


def others_sentence(working: int, asking: int) -> str | None:
    """Return the sentence on the live runs of other parents: their count, and how to see them."""
    if working == 0:
        return None
    if working == 1:
        return f"1 run of another parent {'asks' if asking else 'works'}: list_runs(all=true) shows it."
    what = f", {asking} of them {'asks' if asking == 1 else 'ask'}" if asking else ""
    return f"{working} runs of other parents work{what}: list_runs(all=true) shows them."


# -- The questions and ends that a parent has been shown, so that each is reported once.
#
# A connection remembers it. A cursor holds the same in a short text, for a parent that comes to another
# server: `r654xt` is a run at work, `r654xt.7` one whose questions up to revision 7 were shown, `r654xt.e`
# one whose end was shown. The last part of an id means the id, as in lists for people.


UNSEEN = -1
ENDED = 1 << 31
MAX_SHOWN = 1_000
"""How many runs a connection remembers, and a cursor names."""
_ENTRY = re.compile(rf"([a-z0-9-]{{1,{MAX_LENGTH}}})(?:\.(e|[0-9]{{1,9}}))?")


class ShownRuns:
    """The latest revision of each run that its parent has been shown; `ENDED` if that was its end."""

    def __init__(self, revisions: Mapping[str, int] | None = None) -> None:
        self._revisions = dict(revisions or {})

    @property
    def unfinished(self) -> list[str]:
        """The runs whose end was not shown, in the order in which they were noted."""
        return [run_id for run_id, revision in list(self._revisions.items()) if revision < ENDED]

    def revision(self, run_id: str) -> int:
        """Return how much of a run was shown; `UNSEEN` if nothing was."""
        return self._revisions.get(run_id, UNSEEN)

    def note(self, run_id: str, revision: int = UNSEEN, *, ended: bool = False) -> None:
        """Note that a run was shown. What was shown before stays shown; the oldest runs are forgotten."""
        latest = max(self._revisions.pop(run_id, UNSEEN), ENDED if ended else revision)
        self._revisions[run_id] = latest
        while len(self._revisions) > MAX_SHOWN:
            del self._revisions[next(iter(self._revisions))]

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._revisions

    def of(self, run_ids: Iterable[str]) -> "ShownRuns":
        """Return a copy with these runs only."""
        return ShownRuns({run_id: self.revision(run_id) for run_id in run_ids})

    def cursor(self) -> str:
        """Return this as a text."""
        uses = Counter(map(_tail, self._revisions))
        return ",".join(
            (_tail(run_id) if uses[_tail(run_id)] == 1 else run_id) + _suffix(revision)
            for run_id, revision in list(self._revisions.items())[-MAX_SHOWN:]
        )


def read_cursor(cursor: str, store: RunStore, known: Iterable[str]) -> ShownRuns:
    """Return what a cursor means. The `known` runs are looked at first; a run that is gone is left out.

    Raises:
        BadArgument: no answer of `wait_for_runs` had this cursor.
    """
    entries = [_ENTRY.fullmatch(text) for text in cursor.split(",")]
    if len(entries) > MAX_SHOWN or None in entries:
        raise BadArgument(f"{cursor[:40]!r} is no cursor: use the last answer's, or none.")
    revisions = {entry[1]: _revision(entry[2]) for entry in entries if entry is not None}
    found = _named(revisions, known)
    missing = revisions.keys() - found.keys()
    found |= _named(missing, store.newest_first()) if missing else {}
    shown = ShownRuns()
    for name, run_ids in found.items():
        for run_id in run_ids:  # a name that fits several runs is ambiguous: rather twice than never
            shown.note(run_id, revisions[name] if len(run_ids) == 1 else UNSEEN)
    return shown


def _named(names: Iterable[str], run_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the runs that each name, an id or the last part of one, can mean, if there are any."""
    wanted = set(names)
    found: dict[str, list[str]] = {}
    for run_id in dict.fromkeys(run_ids):
        for name in wanted & {run_id, _tail(run_id)}:
            found.setdefault(name, []).append(run_id)
    return found


def _tail(run_id: str) -> str:
    return run_id.rsplit("-", 1)[-1] or run_id


def _suffix(revision: int) -> str:
    if revision == UNSEEN:
        return ""
    return ".e" if revision == ENDED else f".{revision}"


def _revision(suffix: str | None) -> int:
    if suffix is None:
        return UNSEEN
    return ENDED if suffix == "e" else int(suffix)


# -- Finding a run by what a person typed.


LATEST = "@last"


def find_run(service: Service, name: str) -> str:
    """Return the id of the run that a person names: its id, a unique prefix or its last part, or `@last`.

    `@last` is the last run that no other run started.

    Raises:
        UnknownRun, AmbiguousRun.
    """
    root = service.store.paths
    if is_run_id(name) and root.run(name).directory.is_dir():
        return name
    stored = list(service.store.newest_first())
    matches: list[str] = []
    if name == LATEST:
        matches = list(islice(filter(lambda each: _may_be_first(service, each), stored), 1))
    elif name:
        matches = [each for each in stored if each.startswith(name)]
        matches = matches or [each for each in stored if _tail(each) == name]
    if not matches:
        raise UnknownRun(name, service.settings.runs_root)
    if len(matches) > 1:
        raise AmbiguousRun(name, matches)
    return matches[0]


def _may_be_first(service: Service, run_id: str) -> bool:
    """Whether this is a run that no other run started.

    A run whose state cannot be read counts: `stop @last` must not stop an older run.
    """
    try:
        return service.store.read(run_id).parent_run_id is None
    except UnknownRun:
        return False
    except SubagentError:
        return True
