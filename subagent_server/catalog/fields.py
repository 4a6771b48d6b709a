"""Make an `AgentDefinition` from the keys of an agent file, in either format (SPEC section 3)."""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.catalog.code_mode import read_code_mode
from subagent_server.catalog.files import Unreadable, read_text
from subagent_server.catalog.guards import Guards
from subagent_server.catalog.keys import AGENT_FIELDS, LIMIT_FIELDS, canonical, is_ours
from subagent_server.catalog.models import misspelt_alias, resolve_model
from subagent_server.catalog.parts import Draft, Reading, fill, put, read_part, report_repeated, validated
from subagent_server.catalog.problems import Notes, shown
from subagent_server.catalog.schemas import BadSchema, inline_schema, note_required, schema_file
from subagent_server.catalog.servers import is_http_url, read_servers
from subagent_server.catalog.values import (
    Block,
    Plain,
    Value,
    WrongValue,
    as_json,
    as_paths,
    as_places,
    as_text,
    is_null,
)
from subagent_server.catalog.web import read_web_bounds
from subagent_server.domain.definitions import (
    AgentDefinition,
    JsonSchema,
    Limits,
    SandboxLimits,
    WebFetchBounds,
    WebSearchBounds,
)
from subagent_server.domain.errors import shorten

MAX_NAME = 100
LONG_DESCRIPTION = 20_000
"""Characters."""
_EVERYTHING = frozenset({"*", "all", "all tools"})
_NONE = frozenset({"none"})
"""Keys of CPE configurations that have another name here."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Origin:
    """The source of a definition: its file, its name if it gives none, and its body."""

    path: Path
    name: str
    body: str = ""


@dataclass
class _Job:
    """A file in the course of reading."""

    origin: Origin
    reading: Reading
    draft: Draft = field(default_factory=Draft)
    limits: Draft = field(default_factory=lambda: Draft("limits"))
    read_from: dict[str, Path] = field(default_factory=dict)
    guards: Guards = field(init=False)

    def __post_init__(self) -> None:
        self.guards = Guards(self.reading.notes)

    @property
    def notes(self) -> Notes:
        return self.reading.notes


def read_definition(block: Block, origin: Origin, notes: Notes) -> AgentDefinition:
    """Return the agent described by `block`.

    A wrong value becomes a fault in `notes` and is left out; unknown keys are kept under `unknown` with a
    single warning. The result has no `faults`, `warnings` and `source` yet: `notes` may still grow.
    """
    job = _Job(origin, Reading(notes))
    if origin.body:
        job.draft.values["system_prompt"] = origin.body
    _report_repeated(block, notes)
    for key, value in block.items():
        _read_key(key, value, block.lines[key], job)
    job.draft.values.setdefault("name", origin.name)
    if job.limits.values:
        job.draft.values["limits"] = validated(Limits, job.limits, notes)
    definition = validated(AgentDefinition, job.draft, notes)
    _check(definition, job)
    job.reading.report_unknown()
    whole = {"unknown": job.reading.unknown, "read_from": job.read_from, "lines": _lines(job)}
    return job.guards.applied(definition.model_copy(update=whole))


def _lines(job: _Job) -> dict[str, int]:
    """Return the line of each key, spelled as people know it."""
    drafts = (job.draft, job.limits)
    return {d.name(key): line for d in drafts for key, line in d.lines.items()} | job.reading.lines


def _report_repeated(block: Block, notes: Notes) -> None:
    for key, line in block.repeated.items():
        tell = notes.fault if is_ours(key) else notes.warn
        tell(f"{shorten(key)} is given twice (first on line {block.lines[key]}), so say it once", line)
    for key, value in block.items():
        if is_ours(key):
            report_repeated(value, key, notes)


def _read_key(key: str, value: Value, line: int, job: _Job) -> None:
    form = canonical(key)
    if form in LIMIT_FIELDS:
        fill(job.limits, _alone(key, value, line), LIMIT_FIELDS, job.reading)
        return
    name = AGENT_FIELDS.get(form)
    if name is None:
        if not job.guards.read(key, value, line):
            job.reading.keep_unknown(key, value, line)
    elif name == "tools":
        _tools(value, line, job)
    elif not is_null(value):
        reader = _READERS.get(name)
        if reader is None:
            put(job.draft, name, value, line, job.notes)
        else:
            reader(name, value, line, job)


def _alone(key: str, value: Value, line: int) -> Block:
    block = Block()
    block.put(key, value, line)
    return block


def _set(job: _Job, name: str, value: object, line: int) -> None:
    if name in job.draft.values:
        job.notes.fault(f"{job.draft.name(name)} is given twice, so say it once", line)
    else:
        job.draft.values[name] = value
        job.draft.lines[name] = line


def _name(name: str, value: Value, line: int, job: _Job) -> None:
    try:
        text = as_text(value).strip()
    except WrongValue as error:
        job.notes.fault(f"name {error}", line)
        return
    if not text.isprintable() or len(text) > MAX_NAME:
        job.notes.fault(f"name must be at most {MAX_NAME} printable characters on one line", line)
        text = "".join(c if c.isprintable() else " " for c in text)[:MAX_NAME].strip()
    if text:
        _set(job, name, text, line)


def _description(name: str, value: Value, line: int, job: _Job) -> None:
    try:
        text = as_text(value).strip()
    except WrongValue as error:
        job.notes.fault(f"description {error}", line)
        return
    # Files in the wild write line ends as \n where YAML leaves them as they are: unquoted, or escaped twice.
    is_escaped = isinstance(value, Plain) or "\n" not in text
    _set(job, name, text.replace("\\n", "\n") if is_escaped else text, line)


def _tools(value: Value, line: int, job: _Job) -> None:
    if isinstance(value, Block):
        job.guards.read_tools(value, line)
        return
    if value == ["*"] if isinstance(value, list) else str(value).strip().lower() in _EVERYTHING:
        return
    if is_null(value) or (isinstance(value, str) and value.strip().lower() in _NONE):
        job.notes.warn("tools is empty, so the run has none: without the key it has all", line)
        value = []
    put(job.draft, "tools", value, line, job.notes)


def _model(name: str, value: Value, line: int, job: _Job) -> None:
    if isinstance(value, list) and value:
        job.notes.warn("model is a list, and a run has one model: the first is used", line)
        value = value[0]
    put(job.draft, name, value, line, job.notes)


def _limits(_: str, value: Value, line: int, job: _Job) -> None:
    if isinstance(value, Block):
        fill(job.limits, value, LIMIT_FIELDS, job.reading)
    else:
        job.notes.fault("limits must be a mapping of keys", line)


def _servers(name: str, value: Value, line: int, job: _Job) -> None:
    _set(job, name, read_servers(value, line, job.reading), line)
    job.draft.values["named_servers"] = job.reading.named_servers


def _sandbox_limits(name: str, value: Value, line: int, job: _Job) -> None:
    _set(job, name, read_part(SandboxLimits, value, "sandboxLimits", line, job.reading), line)


def _web_bounds(name: str, value: Value, line: int, job: _Job) -> None:
    if name == "web_search":
        _set(job, name, read_web_bounds(WebSearchBounds, value, "webSearch", line, job.reading), line)
    else:
        _set(job, name, read_web_bounds(WebFetchBounds, value, "webFetch", line, job.reading), line)


def _sandbox_read(name: str, value: Value, line: int, job: _Job) -> None:
    try:
        places = as_places(value)
    except WrongValue as error:
        job.notes.fault(f"sandboxRead {error}", line)
        return
    _set(job, name, places, line)


def _sandbox_write(name: str, value: Value, line: int, job: _Job) -> None:
    try:
        paths = as_paths(value)
    except WrongValue as error:
        job.notes.fault(f"sandboxWrite {error}", line)
        return
    _set(job, name, paths, line)


def _code_mode(name: str, value: Value, line: int, job: _Job) -> None:
    _set(job, name, read_code_mode(value, line, job.reading), line)


def _hooks(name: str, value: Value, line: int, job: _Job) -> None:
    if isinstance(value, Block):
        _set(job, name, as_json(value), line)
    else:
        job.notes.fault("hooks must be a mapping of events to commands", line)


def _schema(_: str, value: Value, line: int, job: _Job) -> None:
    try:
        schema: JsonSchema = inline_schema(value)
    except BadSchema as error:
        job.notes.fault(f"outputSchema: {error}", line)
        return
    note_required("outputSchema", schema, line, job.notes)
    _set(job, "output_schema", schema, line)


def _schema_path(_: str, value: Value, line: int, job: _Job) -> None:
    try:
        path = _named_file("outputSchemaPath", value, job)
        schema = schema_file(path)
    except (BadSchema, WrongValue) as error:
        job.notes.fault(f"outputSchemaPath {error}", line)
        return
    note_required("outputSchemaPath", schema, line, job.notes)
    _set(job, "output_schema", schema, line)


def _prompt_path(_: str, value: Value, line: int, job: _Job) -> None:
    try:
        path = _named_file("systemPromptPath", value, job)
    except WrongValue as error:
        job.notes.fault(f"systemPromptPath {error}", line)
        return
    try:
        _set(job, "system_prompt", read_text(path).strip("\n"), line)
    except Unreadable as error:
        job.notes.fault(f"systemPromptPath {shown(path)}: {error.reason}", line)


def _named_file(key: str, value: Value, job: _Job) -> Path:
    """Return the file named by a key, links resolved, and keep its path: trust depends on the file read."""
    path = job.origin.path.parent / as_text(value)
    with suppress(ValueError):  # a NUL: reading says what is wrong with it
        path = Path(os.path.realpath(path))
    job.read_from[key] = path
    return path


_READERS: Mapping[str, Callable[[str, Value, int, _Job], None]] = {
    "name": _name,
    "description": _description,
    "limits": _limits,
    "model": _model,
    "mcp_servers": _servers,
    "sandbox_limits": _sandbox_limits,
    "web_search": _web_bounds,
    "web_fetch": _web_bounds,
    "sandbox_read": _sandbox_read,
    "sandbox_write": _sandbox_write,
    "code_mode": _code_mode,
    "hooks": _hooks,
    "output_schema": _schema,
    "output_schema_path": _schema_path,
    "system_prompt_path": _prompt_path,
}


def _check(definition: AgentDefinition, job: _Job) -> None:
    """Apply the rules for the meaning of a value, and for two values together."""
    lines = job.draft.lines
    if definition.base_url and not is_http_url(definition.base_url):
        job.notes.fault("baseUrl must begin with http:// or https:// and name a host", lines.get("base_url"))
    if any(c.isspace() for c in resolve_model(definition.model)) and definition.runner == "messages":
        rule = f"must be the id of a model without spaces, not {shorten(definition.model or '')}"
        job.notes.fault(f"model {rule}", lines.get("model"))
    if (
        (near := misspelt_alias(definition.model))
        and not definition.base_url
        and definition.runner == "messages"
    ):
        job.notes.warn(
            f"model {shorten(definition.model or '')} is not known (nearest: {near})", lines.get("model")
        )
    if not _VARIABLE.fullmatch(definition.api_key_env):
        rule = "must be the name of an environment variable, not the key itself"
        job.notes.fault(f"apiKeyEnv {rule}", lines.get("api_key_env"))
    if any(not name or "=" in name for name in definition.env):
        job.notes.fault("env has a variable without a proper name", lines.get("env"))
    _check_command(definition, job)
    if not definition.description:
        job.notes.warn("there is no description, so nobody can tell when to use this agent")
    if len(definition.description) > LONG_DESCRIPTION:
        length = f"{len(definition.description):,} characters"
        job.notes.warn(f"the description has {length}, and every client reads it: shorten it")
    if not definition.system_prompt and definition.runner == "messages":
        job.notes.warn("there is no system prompt")


def _check_command(definition: AgentDefinition, job: _Job) -> None:
    """Apply the rules for the program that carries out the runs of an agent, if it names one."""
    lines = job.draft.lines
    if definition.runner == "messages" and definition.command:
        todo = "add one of them, or leave command out"
        job.notes.fault(f"command is for runner: command and runner: acp: {todo}", lines.get("command"))
    if definition.runner not in ("command", "acp"):
        return
    line = lines.get("runner")
    if not definition.command:
        if not any(fault.startswith("command ") for fault in job.notes.reasons("fault")):
            job.notes.fault(f"command is missing, and runner: {definition.runner} needs one", line)
        return  # what it would be given can be judged when it is there
    if definition.runner == "acp":
        return  # its system prompt goes with the task
    if definition.system_prompt.strip() and not any("{systemPrompt}" in word for word in definition.args):
        todo = "put {systemPrompt} into args, or leave it out"
        job.notes.fault(f"the system prompt cannot reach the program of runner: command: {todo}", line)
