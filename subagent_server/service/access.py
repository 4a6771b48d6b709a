"""The caller of a verb, and the runs that are open to it (SPEC sections 5 and 13).

The caller of the parent tools is trusted as the user is. A child proves itself with the token of its run,
whose hash is in the meta file. The token opens this run and the runs started by it, and nothing else.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from subagent_server.domain.errors import CallerError, SubagentError
from subagent_server.domain.records import RunMeta
from subagent_server.host.processes import Identity, this_process
from subagent_server.settings import Settings
from subagent_server.store.runs import RunStore


class NotAllowed(CallerError):
    """A child reached for a run that is not its own."""

    code = "not_allowed"


@dataclass(frozen=True)
class Caller:
    """The caller of a verb: the user's side (`run_id` None), or the child that is run `run_id`.

    `carries_on` are the earlier runs whose conversation this run continues: the runs they had started are
    open to the child too. `process` is the process through which the user's side calls: the runs that it
    starts are that parent's as long as it lives. `parent` tells the parents of one process apart: the name
    of a token.
    """

    run_id: str | None = None
    carries_on: frozenset[str] = frozenset()
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
    return hashlib.sha256(token.encode()).hexdigest()


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
    return Caller(run_id, frozenset(before))


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
    if not hmac.compare_digest(expected, token_hash(token or "")):
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
