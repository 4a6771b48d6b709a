"""An ended run, in the form needed by its continuation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from subagent_server.domain.records import Message
from subagent_server.domain.states import Status


class StoredFile(Protocol):
    """A file of a run, which is opened when it is read."""

    @property
    def name(self) -> str:
        """Its name in its directory."""

    def read(self, limit: int) -> bytes:
        """Return its content. Raises OSError, also for one of more than `limit` bytes."""


@dataclass(frozen=True)
class PastProgramCall:
    """A call that a program had begun, with the beginning of its result in `text` if it had `finished`."""

    function: str
    arguments: Any = None
    finished: bool = False
    text: str = ""
    is_error: bool = False


@dataclass(frozen=True)
class PastCall:
    """A tool call that had begun. `text` is its result in the journal, if it had `finished`.

    `whole` says whether `text` is complete: a long text is cut, and an image leaves only its name. A call
    that ran a program has the calls of the program in `made`, by their numbers.
    """

    call_id: str
    name: str
    arguments: Any = None
    began_at: datetime | None = None
    finished: bool = False
    text: str = ""
    is_error: bool = False
    whole: bool = True
    made: dict[int, PastProgramCall] = field(default_factory=dict)


@dataclass(frozen=True)
class PastChild:
    """A run that it had started."""

    run_id: str
    agent_name: str
    tool_name: str
    prompt: str
    status: Status


@dataclass(frozen=True)
class PastRun:
    """The files of an earlier run, as far as they are left.

    `messages` are the whole lines of its transcript, empty if the run had not begun. `calls` are the tool
    calls in its journal, by their ids and in their order. `tells_all` is False if the machine has restarted
    since: then the journal may lack its last events.
    """

    run_id: str
    status: Status
    prompt: str
    model: str | None = None
    inputs: tuple[tuple[StoredFile, str], ...] = ()
    messages: Sequence[dict[str, Any]] = ()
    calls: Mapping[str, PastCall] = field(default_factory=dict)
    questions: Sequence[Message] = ()
    children: Sequence[PastChild] = ()
    tells_all: bool = True
