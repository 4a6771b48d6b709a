"""The records of runs, as they are stored or shown."""

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError, from_json

from subagent_server.run.states import (
    SCHEMA_VERSION,
    TOKENS,
    Event,
    MessageStatus,
    Status,
    added,
    cut,
    known_sum,
    left_of,
    timestamp,
)


def _with_room(moment: datetime) -> datetime:
    """Refuse the first and the last year: in another time zone they may not exist. Raises ValueError."""
    if not datetime.min.year < moment.year < datetime.max.year:
        raise ValueError("the year is out of range")
    return moment


def _printable(amount: Decimal) -> Decimal:
    """Refuse an amount that fills a page when written out, such as 1E+999999. Raises ValueError."""
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_MOST_DIGITS or amount.adjusted() > _MOST_DIGITS:
        raise ValueError("the amount is out of range")
    return amount


_MOST_DIGITS = 60
"""Before or behind the point of an amount of money."""

Moment = Annotated[AwareDatetime, AfterValidator(_with_room), PlainSerializer(timestamp, return_type=str)]
Money = Annotated[
    Decimal, AfterValidator(_printable), PlainSerializer(lambda amount: f"{amount:f}", return_type=str)
]

Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]
"""Git takes it as a word, where `--output=FILE` in a record from elsewhere would have it write that file."""


class Record(BaseModel):
    """The base of everything that is stored or shown: frozen, camelCase outside, snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        serialize_by_alias=True,
        defer_build=True,  # a command needs a few of them, and building all took a third of its imports
    )

    def to_json(self) -> bytes:
        """Return the record as a file holds it: indented JSON without the fields that are empty."""
        return encoded(self, exclude_none=True)

    def to_wire(self) -> dict[str, Any]:
        """Return the record as an answer shows it: without what is not known."""
        return self.model_dump(mode="json", exclude_none=True)


def encoded(record: BaseModel, *, exclude_none: bool = False, exclude_unset: bool = False) -> bytes:
    """Return a record as indented JSON. Half a surrogate pair, which UTF-8 cannot hold, becomes `?`."""
    try:
        text = record.model_dump_json(exclude_none=exclude_none, exclude_unset=exclude_unset, indent=1)
    except PydanticSerializationError:
        data = record.model_dump(mode="json", exclude_none=exclude_none, exclude_unset=exclude_unset)
        text = json.dumps(data, ensure_ascii=False, indent=1)
    return text.encode("utf-8", "replace") + b"\n"


def storable(text: str | bytes) -> Any:
    """Return JSON from outside as files of a run can hold it: half a character becomes a question mark.

    Raises:
        ValueError, RecursionError: it is no JSON, has NaN, or is nested more than 200 deep.
    """
    written = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    within = f"[{written}]".encode("utf-8", "replace")  # as in the file: a level more than 201 is unreadable
    return from_json(within, allow_inf_nan=False)[0]


def first_problem(error: ValidationError) -> str:
    """Return where the first problem of some data is, and which, as a part of a sentence."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"


# -- The usage of a run, and sums of it over a tree of runs.


class Usage(Record):
    """The cost of a run so far. Totals, never differences, so that recording one twice changes nothing.

    A number that is None is not known: a program need not report it. In a sum over runs `at_least` names the
    numbers of which a part is not known.
    """

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    cost_usd: Money | None = None
    turns: int | None = 0
    tool_calls: int | None = 0
    web_searches: int | None = 0
    web_fetches: int | None = 0
    at_least: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _with_nulls(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]  # the schema
        """Write a count that is not known as null: where it is missing, it is 0."""
        data = write(self)
        for name in _COUNTS:
            if getattr(self, name) is None:
                data[_ALIASES[name]] = None
        if not self.at_least:
            data.pop("atLeast", None)
        return data

    @property
    def tokens(self) -> int | None:
        """All tokens together, as far as they are known; None if none of them are."""
        return known_sum(*(getattr(self, name) for name in TOKEN_COUNTS))

    def merged(self, other: "Usage | None") -> "Usage":
        """Return the larger of each number: totals only grow. Of equal ones `other` knows what is missing."""
        if other is None:
            return self

        def larger(name: str) -> tuple[Any, bool]:
            one, another = getattr(self, name), getattr(other, name)
            is_ours = one is not None and (another is None or one > another)
            return (one, self._lacks(name)) if is_ours else (another, other._lacks(name))

        return _figure_by_figure(larger)

    def caught_up(self, fresh: "Usage | None") -> "Usage":
        """Return a sum over runs, caught up with a newer one: a run that came since may report nothing."""
        if fresh is None:
            return self
        unknown = [n for n in _COUNTS if getattr(self, n) == 0 and getattr(fresh, n) is None]
        return self.merged(fresh).model_copy(update=dict.fromkeys(unknown))

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of two runs' usage."""
        nothing = Usage()
        if nothing in (self, other):
            return other if self == nothing else self

        def total(name: str) -> tuple[Any, bool]:
            value, lacks = added(getattr(self, name), getattr(other, name))
            is_known = name in _COUNTS or value is not None  # a cost need not be known
            return value, (lacks and is_known) or self._lacks(name) or other._lacks(name)

        return _figure_by_figure(total)

    def less(self, own: "Usage") -> "Usage":
        """Return what is left of the sum of a tree without its first run; never less than nothing."""

        def rest(name: str) -> tuple[Any, bool]:
            total, part = getattr(self, name), getattr(own, name)
            if name in _COUNTS:
                return left_of(total, part, is_least=self._lacks(name))
            return (
                (None, False) if total is None else (max(Decimal(0), total - (part or 0)), self._lacks(name))
            )

        return _figure_by_figure(rest)

    def _lacks(self, name: str) -> bool:
        """Whether a part of a number is not known."""
        return _ALIASES[name] in self.at_least


_FIELDS = tuple(name for name in Usage.model_fields if name != "at_least")
_ALIASES = {name: to_camel(name) for name in _FIELDS}
_COUNTS = tuple(name for name in _FIELDS if name != "cost_usd")
TOKEN_COUNTS = tuple(name for name in _FIELDS if _ALIASES[name] in TOKENS)
UNKNOWN_USAGE = Usage().model_copy(update=dict.fromkeys(_COUNTS))
"""The usage of a run whose program has reported none yet."""


def _figure_by_figure(rule: Callable[[str], tuple[Any, bool]]) -> Usage:
    """Return the usage whose numbers `rule` returns by name, each with whether a part of it is missing."""
    found = {name: rule(name) for name in _FIELDS}
    least = tuple(_ALIASES[name] for name, (_, lacks) in found.items() if lacks)
    return Usage(**{name: value for name, (value, _) in found.items()}, at_least=least)


# -- The records of a run: its state in the meta file, its request, its result, and their parts.
#
# `apply` is the only way from one `RunMeta` to the next. JSON is camelCase, Python snake_case; one alias
# generator maps them. Times are ISO 8601 UTC with milliseconds, money is a decimal string in USD.


NEXT_STEP = "Its log shows how far it came; continue it, or start it again."
"""The hint of a failure that knows no better one."""
_BEFORE_A_BEGIN = ("config", "launch_failed")
_NOT_BEGUN = "Fix what it names, then start it again: it had not begun."


class Failure(Record):
    """The reason of a failed run: a stable code, one sentence, and a hint at the next step."""

    code: str
    message: str
    hint: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_hint(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("hint"):
            return data
        return {**data, "hint": _NOT_BEGUN if data.get("code") in _BEFORE_A_BEGIN else NEXT_STEP}


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
    """The launcher of a run: its kind, the host or engine that got it, and the boot of a host.

    `lease` is there if the run beats (`process/beat.py`): silent for two of them, in seconds, it is lost.
    """

    kind: str = "local"
    host: str
    boot_id: str
    lease: float | None = Field(default=None, ge=2)


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
    base: Commit
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

    def is_pending(self, message_id: str) -> bool:
        """Whether this question waits for an answer."""
        return any(m.message_id == message_id for m in self.pending)

    @property
    def ended_at(self) -> datetime | None:
        """When the run ended, however it did."""
        return self.completed_at or self.stopped_at

    def message(self, message_id: str) -> Message | None:
        """Return the question of this id."""
        return next((m for m in self.messages if m.message_id == message_id), None)


class AgentsFrom(Record):
    """The directories of the agents of a tree of runs: fixed by its first run, the same for all below.

    `project` is the directory in which the `directories` were found, or None if a person named them.
    `home` and `trust_file` are the user's; `trusts_all` is the flag `--trust`. `served` are of one run alone:
    the names of the agents that its own agent has as MCP servers (`subagent serve --config FILE`).
    """

    directories: list[str]
    project: str | None = None
    home: str | None = None
    trust_file: str | None = None
    trusts_all: bool = False
    served: list[str] = Field(default_factory=list)


class FlowOptions(Record):
    """How a run answers calls of agents that are on record: which failed ones, and which agents, start anew.

    `dry_run` starts nothing: the run ends with a list of its calls.
    """

    retry_failed: bool = False
    fresh: list[str] = Field(default_factory=list)
    dry_run: bool = False


class RunRequest(Record):
    """The task of a run: the content of `request.json`. Never changed after the start.

    `prompt` of a flow is the JSON of its arguments. `call_id` is the identity of the call by which a program
    has started the run: a program that makes the same call again gets the result of this run.
    """

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
    call_id: str | None = None
    flow: FlowOptions | None = None

    @property
    def runner(self) -> str:
        """The name of the runner of its agent."""
        return str(self.agent.get("runner", "messages"))


class WebSource(Record):
    """A page that a run has found or read on the web."""

    url: str
    title: str | None = None


class RunResult(Record):
    """How a run ended, in its own words: the content of `result.json`.

    `can_run_code` are files that changed during the run and that other programs execute by themselves.
    `worktree` is what became of its worktree, as the view shows it. `warnings` are sentences for people about
    how it worked.
    """

    outcome: Status
    text: str = ""
    output: Any = None
    summary: str | None = None
    sources: list[WebSource] | None = None
    can_run_code: list[str] | None = None
    warnings: list[str] | None = None
    worktree: dict[str, Any] | None = None
    error: Failure | None = None

    @property
    def has_output(self) -> bool:
        """Whether there is a structured result; it may be null."""
        return "output" in self.model_fields_set

    @property
    def words(self) -> str:
        """The structured result as JSON, in several lines, else the text."""
        return json.dumps(self.output, ensure_ascii=False, indent=2) if self.has_output else self.text

    @property
    def headline(self) -> str | None:
        """The agent's own summary, else the first line of its text, or its output: the summary for lists."""
        if self.summary is not None:
            return cut(self.summary)
        if isinstance(self.output, dict) and isinstance(self.output.get("summary"), str):
            return str(self.output["summary"])[:300]
        line = self.text.strip().split("\n", 1)[0].rstrip()
        if not line and self.has_output:
            line = json.dumps(self.output, ensure_ascii=False)
        return line[:300] or None

    def to_json(self) -> bytes:
        """Return the record as a file holds it; an output of null is kept."""
        return encoded(self, exclude_unset=True)


# -- The records of a run's worktree: where it is, fixed at the start, and its state.


MAX_NOTES = 10
MAX_NOTE_CHARACTERS = 500


class WorktreeState(Record):
    """The state of a worktree: the content of `worktree.json`.

    `removing` is written before anything is deleted, so that half a worktree is never taken for changes. The
    counts compare `tip`, the last commit on the branch, with the base. `merged_tip` is the tip that was
    merged last, and `handed_to` the run that has taken the worktree over. With `boxed` the run works in a
    box, so nothing of it is read outside of one; `trouble` is why its end could not be settled yet.
    """

    phase: Literal["working", "kept", "removing", "removed"]
    boxed: bool = False
    left_changed: int = 0
    left_untracked: int = 0
    included: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    tip: Commit | None = None
    commits: int = 0
    files: int = 0
    insertions: int = 0
    deletions: int = 0
    merged_tip: Commit | None = None
    merged_into: Commit | None = None
    handed_to: str | None = None
    trouble: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the worktree belongs to another run by now, or is in its final state."""
        return self.handed_to is not None or self.phase in ("kept", "removed")


def worktree_view(worktree: Worktree, state: WorktreeState | None) -> dict[str, Any]:
    """Return a worktree as views and results show it: its path, its changes, and what it left out."""
    shown: dict[str, Any] = {"branch": worktree.branch, "base": worktree.base, "from": worktree.origin}
    if state is None:
        return shown
    is_there = state.phase in ("working", "kept")
    shown |= {"state": state.phase, **({"path": worktree.path} if is_there else {})}
    if state.phase == "kept":
        columns = ("commits", "files", "insertions", "deletions")
        shown |= {name: getattr(state, name) for name in columns}
        shown["merged"] = state.tip == state.merged_tip
    if state.handed_to is not None:
        shown["takenOverBy"] = state.handed_to
    left = {"changed": state.left_changed, "untracked": state.left_untracked}
    if any(left.values()):
        counts = ", ".join(f"{number:,} {what}" for what, number in left.items() if number)
        shown["leftBehind"] = f"uncommitted files of {worktree.origin} are not in it: {counts}"
    if state.included:
        shown["included"] = len(state.included)
    if state.trouble is not None and not state.is_settled:
        shown["trouble"] = state.trouble
    if state.notes:
        shown["notes"] = [note[:MAX_NOTE_CHARACTERS] for note in state.notes[:MAX_NOTES]]
    return shown


def worktree_text(worktree: Worktree | None) -> str:
    """Return the sentence about its worktree for the model of a run; empty if it has none."""
    if worktree is None:
        return ""
    return (
        f"Your directory is in a git worktree of your own, on the branch {worktree.branch} from commit "
        f"{worktree.base[:12]}: changes of the original working copy that were not committed are not in it, "
        "and what you leave is committed on this branch when you end."
    )
