"""The records of a run: its state in the meta file, its request, its result, and their parts.

`apply` is the only way from one `RunMeta` to the next. JSON is camelCase, Python snake_case; one alias
generator maps them. Times are ISO 8601 UTC with milliseconds, money is a decimal string in USD.
"""

from datetime import datetime
from typing import Any

from pydantic import Field

from subagent_server.domain.record_base import Moment as Moment
from subagent_server.domain.record_base import Money as Money
from subagent_server.domain.record_base import Record as Record
from subagent_server.domain.record_base import encoded
from subagent_server.domain.states import Event, MessageStatus, Status
from subagent_server.domain.usage import UNTOLD as UNTOLD
from subagent_server.domain.usage import Usage as Usage
from subagent_server.domain.versions import SCHEMA_VERSION as SCHEMA_VERSION


class Failure(Record):
    """The reason of a failed run: a stable code, one sentence, and a hint at the next step."""

    code: str
    message: str
    hint: str | None = None


class PayloadInfo(Record):
    """A stored payload: its uncompressed size in bytes and its file."""

    size: int
    path: str


class Message(Record):
    """One question of the subagent, its answer, and its status."""

    message_id: str
    question_content: str
    options: list[str] | None = None
    question_timestamp: Moment
    asked_revision: int
    expires_at: Moment | None = None
    answer_content: str | None = None
    answer_timestamp: Moment | None = None
    answered_by: str | None = None
    message_status: MessageStatus


class Transition(Record):
    """One step of the run, as it was taken."""

    event: Event
    from_status: Status = Field(alias="from")
    to_status: Status = Field(alias="to")
    at: Moment


class LaunchInfo(Record):
    """The launcher of a run: its kind, its host and the boot."""

    kind: str = "local"
    host: str
    boot_id: str


class WorkerIdentity(Record):
    """A process: pid, its start time in clock ticks since boot, boot and host. A pid alone is not enough."""

    host: str
    pid: int
    start_time: int
    boot_id: str


class Worktree(Record):
    """The git worktree of a run, fixed at its start.

    `origin` is the working copy (or bare repository) whose `HEAD` named the commit `base`, and `prefix` the
    directory in it that was meant. `repository` is the common directory of git. `taken_from` is the run whose
    worktree this was before.
    """

    path: str
    branch: str
    base: str
    origin: str
    prefix: str = ""
    repository: str
    taken_from: str | None = None


class StartedBy(Record):
    """The process through which the first run of a tree was started, and the name of its client.

    `parent` is the name of the token of a parent that came over HTTP.
    """

    client: str | None = None
    parent: str | None = None
    host: str
    pid: int
    start_time: int
    boot_id: str


class RunMeta(Record):
    """The state of a run: the content of `run.meta.json`."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0
    run_id: str
    agent_name: str
    label: str | None = None
    status: Status = Status.READY
    pending_questions: int = 0
    continues_run_id: str | None = None
    parent_run_id: str | None = None
    root_run_id: str
    depth: int = 0
    started_by: StartedBy | None = None
    created_at: Moment
    started_at: Moment | None = None
    completed_at: Moment | None = None
    stopped_at: Moment | None = None
    summary: str | None = None
    payload: PayloadInfo | None = None
    error: Failure | None = None
    usage: Usage = Usage()
    with_descendants: Usage = Usage()
    messages: list[Message] = Field(default_factory=list)
    transitions: list[Transition] = Field(default_factory=list)
    launch: LaunchInfo | None = None
    worker: WorkerIdentity | None = None
    worktree: Worktree | None = None
    external_session_id: str | None = None
    child_token_hash: str | None = None

    @property
    def pending(self) -> list[Message]:
        """The questions that wait for an answer, oldest first."""
        return [m for m in self.messages if m.message_status is MessageStatus.PENDING]

    @property
    def ended_at(self) -> datetime | None:
        """When the run ended, however it did."""
        return self.completed_at or self.stopped_at

    def message(self, message_id: str) -> Message | None:
        """Return the question of this id."""
        return next((m for m in self.messages if m.message_id == message_id), None)


class AgentsFrom(Record):
    """The directories of the agents of a tree of runs: fixed by its first run, the same for all below.

    `project` is the directory whose usual places the `directories` are, or None if a person named them.
    `home` and `trust_file` are the user's; `trusts_all` is the flag `--trust`. `configs` are of one run
    alone: the files that its agent's own MCP servers are told to serve (`subagent serve --config FILE`).
    """

    directories: list[str]
    project: str | None = None
    home: str | None = None
    trust_file: str | None = None
    trusts_all: bool = False
    configs: list[str] = Field(default_factory=list)


class RunRequest(Record):
    """The task of a run: the content of `request.json`. Never changed after the start."""

    run_id: str
    agent: dict[str, object]
    prompt: str
    inputs: list[str] = Field(default_factory=list)
    cwd: str
    label: str | None = None
    continues_run_id: str | None = None
    parent_run_id: str | None = None
    root_run_id: str
    depth: int = 0
    agents_from: AgentsFrom | None = None
    created_at: Moment
    warnings: list[str] = Field(default_factory=list)
    scripted: bool | None = None
    """True if a script played the model."""


class WebSource(Record):
    """A page that a run has found or read on the web."""

    url: str
    title: str | None = None


class RunResult(Record):
    """How a run ended, in its own words: the content of `result.json`.

    `can_run_code` are files that changed during the run and that other programs execute unasked. `worktree`
    says what became of its worktree, as the view does.
    """

    outcome: Status
    text: str = ""
    output: Any = None
    summary: str | None = None
    sources: list[WebSource] | None = None
    can_run_code: list[str] | None = None
    worktree: dict[str, Any] | None = None
    error: Failure | None = None

    @property
    def has_output(self) -> bool:
        """Whether there is a structured result; it may be null."""
        return "output" in self.model_fields_set

    def to_json(self) -> bytes:
        """Return the record as a file holds it; an output of null is kept."""
        return encoded(self, exclude_unset=True)
