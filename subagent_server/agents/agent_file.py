"""An `AgentDefinition` from the keys of an agent file, in either format (SPEC section 3).

A part of a file (the agent, its limits, a server) is a mapping of keys. `_READERS` bring each key into the
form in which the pydantic model of the part takes it, and the model judges it. What a reader or the model
refuses is a fault with the key and its line, and the rest is read as if the key were not there: a single
wrong number does not hide an agent.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from subagent_server.agents.guards import Guards
from subagent_server.agents.known_names import misspelt_alias, resolve_model
from subagent_server.agents.output_schemas import BadSchema, check_pattern, inline_schema, schema_file
from subagent_server.agents.variables import rules_of_variables
from subagent_server.agents.yaml_reader import (
    AGENT_FIELDS,
    LIMIT_FIELDS,
    MOST_NAMES,
    PARTS,
    Block,
    Notes,
    Plain,
    Unreadable,
    Value,
    WrongValue,
    as_absolute_paths,
    as_json,
    as_names,
    as_paths,
    as_text,
    as_text_tree,
    camel,
    canonical,
    fields_of,
    is_null,
    is_ours,
    nearest_key,
    read_text,
    shown,
)
from subagent_server.run.agent_definition import (
    ACP_PROGRAMS,
    AgentDefinition,
    CodeMode,
    FailIf,
    JsonSchema,
    Limits,
    Placement,
    RunnerName,
    ServerDefinition,
    WebFetchBounds,
    WebSearchBounds,
)
from subagent_server.run.errors import shorten, visible

Model = TypeVar("Model", bound=BaseModel)

MAX_NAME = 100
LONG_DESCRIPTION = 20_000
"""Characters."""
NAME_LISTS = frozenset(
    {"tools", "disallowed_tools", "ask", "agents", "excluded_tools", "enabled_tools", "disabled_tools"}
    | {"allowed_domains", "blocked_domains"}
)
_STARTS = frozenset({"task", "agent"})
"""What Claude Code calls its tool that starts agents."""
_EVERYTHING = frozenset({"*", "all", "all tools"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOMAIN = re.compile(r"[^\s:/?#*]+\.[^\s:/?#*]+(?:/\S*)?")
_PRIVATE = frozenset({"env", "headers", "args", "url", "command", "api_key_env"})
"""Fields whose values no message repeats: secrets are among them, also under a wrong key."""
_OTHER_TYPES = {"local": "stdio", "remote": "http", "streamable-http": "http", "streamablehttp": "http"}
"""Types of a server as other tools write them."""
_LONGEST_TIMEOUT = 3_600.0
"""Seconds in which a server connects. In files of other tools a `timeout` is mostly one of milliseconds."""
_OF_BOX = ("sandbox", "network", "sandbox_read", "sandbox_write")
_SERVER_FIELDS = fields_of(ServerDefinition)
_THEIR_SERVER_FIELDS = {
    "tools": "enabled_tools",
    "includetools": "enabled_tools",
    "excludetools": "disabled_tools",
}
"""How Copilot and Gemini CLI call them."""
_ALL_LIMITS = frozenset({"limits", "sandboxLimits", "placement", "webSearch", "webFetch", "failIf"})
"""Parts of which every key is a limit or a condition."""
_LIMITS = frozenset(
    {*map(camel, LIMIT_FIELDS.values()), *_ALL_LIMITS, "tools", "disallowedTools", "permissionMode"}
    | {"sandbox", "network", "isolation", "maxConcurrent", "maxTokens"}
    | {"enabledTools", "disabledTools", "excludedTools", "maxTimeoutSeconds", "callTimeoutSeconds"}
)
"""Keys whose misspelling means a limit, too."""
_LIMIT = re.compile(r"max.*|.*(?:limit|timeout|budget)s?")
"""What a limit is called in any tool, in canonical spelling."""
_DISABLED = (("disabled", True), ("enabled", False))
_CODE_MODE_FIELDS = {**fields_of(CodeMode), "maxtimeout": "max_timeout_seconds"}
"""`maxTimeout` is what CPE files call it."""


@dataclass(frozen=True)
class Origin:
    """The source of a definition: its file, its name if the file sets none, and its body."""

    path: Path
    name: str
    body: str = ""


@dataclass
class Reading:
    """One file while it is read: what is known of it besides the values of its parts."""

    notes: Notes
    origin: Origin = Origin(Path(), "")
    unknown: dict[str, object] = field(default_factory=dict)
    unknown_line: int | None = None
    named_servers: list[str] = field(default_factory=list)
    other_models: list[str] = field(default_factory=list)
    read_from: dict[str, Path] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    """Command and arguments that the name of a runner means."""
    guards: Guards = field(init=False)

    def __post_init__(self) -> None:
        self.guards = Guards(self.notes)

    def keep_unknown(self, key: str, value: Value, line: int | None) -> None:
        """Remember an unknown key; `report_unknown` reports all of them at once. A limit is refused."""
        part, _, name = key.rpartition(".")
        near = nearest_key(key)
        ours = part.rpartition(".")[2] in ("", "codeMode")  # a server may have keys of its own
        if part in _ALL_LIMITS or near in _LIMITS or (ours and _LIMIT.fullmatch(canonical(name))):
            self.guards.refuse(key, line, f"nearest: {near}" if near else "")
            return
        self.unknown[key] = as_json(value)
        self.unknown_line = self.unknown_line or line

    def report_unknown(self) -> None:
        """Add a single warning naming every unknown key, on the line of the first."""
        if self.unknown:
            near = {key: nearest_key(key) for key in list(self.unknown)[:20]}
            keys = ", ".join(shorten(key, 60) + (f" (nearest: {n})" if n else "") for key, n in near.items())
            more = ", ..." if len(self.unknown) > 20 else ""
            self.notes.warn(f"unknown keys are kept and not used: {keys}{more}", self.unknown_line)


@dataclass(frozen=True)
class _Key:
    """A key that is being read, by the name in the file: `limits.maxTurns`."""

    name: str
    line: int | None
    reading: Reading

    @property
    def notes(self) -> Notes:
        return self.reading.notes


class _KeyedPart:
    """The values of one part of a file, by the fields of its model."""

    def __init__(self, where: str, reading: Reading) -> None:
        self.where = where
        self.reading = reading
        self.values: dict[str, object] = {}
        self.lines: dict[str, int] = {}

    def name(self, name: str) -> str:
        """Return a field as people know it."""
        return f"{self.where}.{camel(name)}" if self.where else camel(name)

    def fill(self, block: Block, fields: Mapping[str, str]) -> None:
        """Read the keys of a mapping; those that are not in `fields` are unknown."""
        for key, value in block.items():
            name = fields.get(canonical(key))
            line = block.lines.get(key)
            if name is None:
                self.reading.keep_unknown(f"{self.where}.{key}", value, line)
            elif not is_null(value):
                self.put(name, value, line)

    def put(self, name: str, value: Value, line: int | None) -> None:
        """Read the value of a field; a second one is a fault."""
        target, notes = name.removesuffix("_path"), self.reading.notes
        reader = _READERS.get(f"{self.where.partition('.')[0]}.{name}") or _READERS.get(name, _text_tree)
        try:
            read = reader(value, _Key(self.name(name), line, self.reading))
            if target in self.values:
                raise WrongValue("appears twice, so say it once")
            self.values[target] = read
        except BadSchema as error:
            notes.fault(f"{self.name(name)}{':' if name == target else ''} {error}", line)
        except WrongValue as error:
            notes.fault(f"{self.name(name)} {error}", line)
        if line is not None:
            self.lines.setdefault(target, line)

    def built(self, kind: type[Model], line: int | None = None) -> Model:
        """Return the part without the values that its model refuses; each of these is a fault."""
        try:
            return kind.model_validate(self.values)
        except ValidationError as error:
            for name, reason in self._reasons(error).items():
                self.reading.notes.fault(f"{self.name(name)} {reason}", self.lines.get(name, line))
                del self.values[name]
        return self.built(kind, line)

    def _reasons(self, error: ValidationError) -> dict[str, str]:
        """Return what is wrong, by the field: pydantic's words become ours here alone."""
        reasons: dict[str, str] = {}
        fields = {camel(name): name for name in self.values}
        for detail in error.errors(include_url=False):
            key, *inner = map(str, detail["loc"])
            name = fields.get(key, key)
            rule = IN_WORDS.get(detail["type"]) or detail["msg"].replace("Input should", "must")
            rule = rule.partition(", unable")[0]
            if "seconds" in name.casefold() and detail["type"] in _NUMBERS:
                rule = "must be a number of seconds, such as 600"
            at = f" at {inner[0]!r}" if inner else ""
            is_shown = isinstance(detail["input"], str) and name not in _PRIVATE
            shown_value = f", not {shorten(detail['input'])}" if is_shown else ""
            reasons.setdefault(name, f"{rule}{at}{shown_value}")
        return reasons


_NUMBERS = frozenset({"float_parsing", "float_type", "int_parsing", "int_type", "decimal_parsing"})
_MAPPING = 'must be a mapping, each entry as `KEY: value`, with `"${X}"` in quotes'
IN_WORDS = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("dict_type", "model_type"), _MAPPING),
    "list_type": "must be a list",
    "string_type": "must be text",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number, such as 10"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number, such as 1.5"),
    **dict.fromkeys(("decimal_parsing", "decimal_type"), "must be an amount, such as 2.50"),
    "value_error": "is out of range",  # only amounts of money are judged by a function of ours
    "string_pattern_mismatch": "must have the form that docs/slurm.md shows",  # only `placement` has patterns
}
"""What pydantic calls by its own words, in those of a person."""


def read_definition(block: Block, origin: Origin, notes: Notes) -> AgentDefinition:
    """Return the agent described by `block`.

    A wrong value becomes a fault in `notes` and is left out; unknown keys are kept under `unknown` with a
    single warning. The result has no `faults`, `warnings` and `source` yet: `notes` may still grow.
    """
    reading = Reading(notes, origin)
    agent, limits = _KeyedPart("", reading), _KeyedPart("limits", reading)
    if origin.body:
        agent.values["system_prompt"] = origin.body
    for key, line in block.repeated.items():
        report = notes.fault if is_ours(key) else notes.warn
        report(f"{shorten(key)} appears twice (first on line {block.lines[key]}), so say it once", line)
    for key, value in block.items():
        if is_ours(key):
            report_repeated(value, key, notes)
    for key, value in block.items():
        _read_key(key, value, block.lines[key], agent, limits)
    agent.values.setdefault("name", origin.name)
    if limits.values:
        agent.values["limits"] = limits.built(Limits)
    agent.values |= {"named_servers": reading.named_servers, "other_models": reading.other_models}
    if reading.program:
        agent.values.setdefault("command", reading.program[0])
        agent.values.setdefault("args", list(reading.program[1:]))
    definition = agent.built(AgentDefinition)
    if definition.agents and not _STARTS.isdisjoint(map(str.lower, definition.disallowed_tools)):
        notes.warn("disallowedTools takes the starting of agents away, so agents is not used")
        definition = definition.model_copy(update={"agents": []})
    _check(definition, agent.lines, notes)
    reading.report_unknown()
    lines = {part.name(name): line for part in (agent, limits) for name, line in part.lines.items()}
    found = {"unknown": reading.unknown, "read_from": reading.read_from, "lines": lines | reading.lines}
    return reading.guards.applied(definition.model_copy(update=found))


def _read_key(key: str, value: Value, line: int, agent: _KeyedPart, limits: _KeyedPart) -> None:
    form, reading = canonical(key), agent.reading
    name = AGENT_FIELDS.get(form)
    if form in LIMIT_FIELDS:
        if not is_null(value):
            limits.put(LIMIT_FIELDS[form], value, line)
    elif name is None:
        if not reading.guards.read(key, value, line):
            reading.keep_unknown(key, value, line)
    elif name == "limits" and isinstance(value, Block):
        limits.fill(value, LIMIT_FIELDS)
    elif name == "limits" and not is_null(value):
        reading.notes.fault("limits must be a mapping of keys", line)
    elif name == "tools" or not is_null(value):
        agent.put(name, value, line)


def report_repeated(value: Value, where: str, notes: Notes) -> None:
    """Add a fault for each repeated key of a mapping, at any depth of `value`."""
    if isinstance(value, list):
        for item in value:
            report_repeated(item, where, notes)
    if isinstance(value, Block):
        for key, line in value.repeated.items():
            first = value.lines[key]
            notes.fault(f"{where}.{key} appears twice (first on line {first}), so say it once", line)
        for key, item in value.items():
            report_repeated(item, f"{where}.{key}", notes)


# -- the keys


def _text_tree(value: Value, _: _Key) -> object:
    return as_text_tree(value)


def _choice(value: Value, _: _Key) -> object:
    text = as_text_tree(value)
    return text.strip().lower() if isinstance(text, str) else text


def _part_of(kind: type[BaseModel], fields: Mapping[str, str]) -> Callable[[Value, _Key], object]:
    """Return the reader of a key whose value is a part of its own."""

    def read(value: Value, key: _Key) -> object:
        if not isinstance(value, Block):
            raise WrongValue("must be a mapping of keys")
        part = _KeyedPart(key.name, key.reading)
        part.fill(value, fields)
        return part.built(kind, key.line)

    return read


def _name(value: Value, key: _Key) -> str:
    text = as_text(value).strip()
    if visible(text) != text or len(text) > MAX_NAME:
        key.notes.fault(f"name must be at most {MAX_NAME} printable characters on one line", key.line)
        text = "".join(c if c.isprintable() else " " for c in text)[:MAX_NAME].strip()
    return text or key.reading.origin.name


def _description(value: Value, _: _Key) -> str:
    text = as_text(value).strip()
    # Files in the wild write line ends as \n where YAML leaves them as they are: unquoted, or escaped twice.
    is_escaped = isinstance(value, Plain) or "\n" not in text
    return text.replace("\\n", "\n") if is_escaped else text


def _tools(value: Value, key: _Key) -> list[str] | None:
    if isinstance(value, Block):
        key.reading.guards.read_tools(value, key.line)
        return None
    if value == ["*"] or (isinstance(value, str) and value.strip().lower() in _EVERYTHING):
        return None
    if is_null(value) or (isinstance(value, str) and value.strip().lower() == "none"):
        key.notes.warn("tools is empty, so the run has none: without the key it has all", key.line)
        return []
    return as_names(value)


def _model(value: Value, key: _Key) -> object:
    written = value if isinstance(value, list) else ["" if is_null(value) else value]
    names = [as_text(item) for item in written] or [""]
    if len(names) > MOST_NAMES:
        raise WrongValue(f"must have at most {MOST_NAMES} names")
    if any(name.startswith("-") for name in names):
        raise WrongValue("must not begin with -: a program would take it for an option")
    first, *key.reading.other_models = names
    return first


def _code_mode(value: Value, key: _Key) -> object:
    if isinstance(value, str):
        block = Block()
        block.put("enabled", value, key.line or 0)
        value = block
    elif isinstance(value, Block) and not any(canonical(name) == "enabled" for name in value):
        key.notes.warn("codeMode is off, because it has no `enabled: true`", key.line)
    return _part_of(CodeMode, _CODE_MODE_FIELDS)(value, key)


def _web(kind: type[WebSearchBounds] | type[WebFetchBounds]) -> Callable[[Value, _Key], object]:
    def read(value: Value, key: _Key) -> object:
        bounds = _part_of(kind, fields_of(kind))(value, key)
        assert isinstance(bounds, WebSearchBounds | WebFetchBounds)
        if bounds.allowed_domains and bounds.blocked_domains:
            raise WrongValue("has allowedDomains and blockedDomains: give one of them")
        return bounds

    return read


def _domains(value: Value, _: _Key) -> list[str]:
    """Read a list of domains, unless the API would refuse it."""
    domains = as_names(value)
    if not domains:
        raise WrongValue("is empty: name a domain, or leave it out")
    if (wrong := next((d for d in domains if not _DOMAIN.fullmatch(d)), None)) is not None:
        rule = "must be domains such as example.com, without https:// and without *"
        raise WrongValue(f"{rule}, not {shorten(wrong)}")
    return domains


def _runner(value: Value, key: _Key) -> object:
    """Read the name of a runner; that of a known program means `acp` with its command."""
    name = _choice(value, key)
    if isinstance(name, str) and name in ACP_PROGRAMS:
        key.reading.program = ACP_PROGRAMS[name]
        return "acp"
    if isinstance(name, str) and name not in (names := get_args(RunnerName)):
        known = [each for each in (*names, *ACP_PROGRAMS) if each != "flow"]  # a flow is one by its file name
        raise WrongValue(f"must be one of {', '.join(known)}, not {shorten(name)}")
    return name


def _exit_codes(value: Value, _: _Key) -> list[int]:
    """Read a list of exit codes, or one."""
    codes = [as_text(each).strip() for each in (value if isinstance(value, list) else [value])]
    if not codes or not all(re.fullmatch("[0-9]{1,3}", code) and int(code) < 256 for code in codes):
        raise WrongValue("must be a list of exit codes from 0 to 255")
    return [int(code) for code in codes]


def _pattern(value: Value, _: _Key) -> str:
    text = as_text(value)
    try:
        check_pattern(text)
    except ValueError as error:
        raise WrongValue(f"is no pattern of Python's `re` ({error})") from error
    return text


def _hooks(value: Value, _: _Key) -> object:
    if not isinstance(value, Block):
        raise WrongValue("must be a mapping of events to commands")
    return as_json(value)


def _output_schema(value: Value, key: _Key) -> JsonSchema:
    path = _named_file(value, key) if key.name.endswith("Path") else None
    return inline_schema(value) if path is None else schema_file(path)


def _system_prompt_path(value: Value, key: _Key) -> str:
    path = _named_file(value, key)
    try:
        return read_text(path).strip("\n")
    except Unreadable as error:
        raise WrongValue(f"{shown(path)}: {error.reason}") from error


def _named_file(value: Value, key: _Key) -> Path:
    """Return the file named by a key, links resolved, and keep its path: trust depends on the file read."""
    path = key.reading.origin.path.parent / as_text(value)
    with suppress(ValueError):  # a NUL: reading reports what is wrong with it
        path = Path(os.path.realpath(path))
    key.reading.read_from[key.name] = path
    return path


# -- MCP servers, by the rules of the seed's validation table (SPEC section 8)


def read_servers(value: Value, line: int | None, reading: Reading) -> dict[str, ServerDefinition]:
    """Return the servers of `mcpServers`: a mapping by name, a list of mappings, or names.

    A name alone refers to a server that is defined elsewhere: it is kept in `reading.named_servers`. A broken
    rule is a fault; a server that cannot be read at all is left out.
    """
    servers: dict[str, ServerDefinition] = {}
    seen = set[str]()
    for name, content, at in _named(value, line, reading):
        if at is not None:
            reading.lines.setdefault(f"mcpServers.{name}", at)
        if name in seen:
            reading.notes.fault(f"mcpServers.{name} appears twice, so say it once", at)
        elif content is None or is_null(content):
            reading.named_servers.append(name)
        elif isinstance(content, Block):
            servers[name] = _server(name, content, at, reading)
        else:
            reading.notes.fault(f"mcpServers.{name} must be a mapping of keys", at)
        seen.add(name)
    return servers


_Named: TypeAlias = "tuple[str, Value | None, int | None]"


def _named(value: Value, line: int | None, reading: Reading) -> Iterator[_Named]:
    """Yield the name of each server, its keys unless it is only named, and its line."""
    if isinstance(value, Block):
        yield from ((name, item, value.lines.get(name, line)) for name, item in value.items())
        return
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, Block):
            yield from ((name, None, line) for name in as_names(item))
            continue
        at = next(iter(item.lines.values()), line)
        if isinstance(name := item.get("name"), str):  # `{name: github, ...}`
            content = Block()
            for key in (key for key in item if key != "name"):
                content.put(key, item[key], item.lines[key])
            yield name, content, at
        elif any(canonical(key) in _SERVER_FIELDS for key in item):
            reading.notes.fault("a server in the list of mcpServers has no name", at)
        else:  # `{github: {...}}`
            yield from ((key, content, item.lines[key]) for key, content in item.items())


def _server(name: str, block: Block, line: int | None, reading: Reading) -> ServerDefinition:
    part = _KeyedPart(f"mcpServers.{name}", reading)
    part.fill(block, {**_SERVER_FIELDS, **_THEIR_SERVER_FIELDS})
    for key in (key for key, value in block.items() if (canonical(key), as_json(value)) in _DISABLED):
        reading.notes.fault(f"{part.where} is disabled: take it out, or its key {key}", block.lines[key])
    is_typed = "type" in part.values
    if not is_typed and "command" not in part.values:
        rule = "http or sse, with its url" if "url" in part.values else "or a command"
        reading.notes.fault(f"{part.where} needs a type, {rule}", line)
        return part.built(ServerDefinition, line)
    server = part.built(ServerDefinition, line)
    if not is_typed or "type" in part.values:  # else its type is a fault, and no rule can be judged
        for key, rule in _broken_rules(server, part.values):
            reading.notes.fault(f"{part.name(key)} {rule}", part.lines.get(key, line))
        for key in ("command", "args"):
            if server.type != "stdio" and key in part.values:
                reading.notes.warn(f"{part.name(key)} is not used by {server.type}", part.lines.get(key))
    usual = ServerDefinition()
    times = ("timeout", "call_timeout_seconds")
    changes = {key: getattr(usual, key) for key in times if getattr(server, key) == 0}
    if server.timeout > _LONGEST_TIMEOUT:
        changes["timeout"] = server.timeout / 1000
    return server.model_copy(update=changes) if changes else server


def _broken_rules(server: ServerDefinition, values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the keys that break a rule of their type, each with the rule."""
    is_boxed = server.network is False or server.sandbox_read or server.sandbox_write
    foreign = f"is for stdio, and this is a server by {server.type}"
    rules: list[tuple[str, object, str]] = [
        *(("env", is_broken, rule) for is_broken, rule in rules_of_variables(server.env)),
        ("command", not (server.command or "").strip(), "is missing, and a stdio server is started by one"),
        ("url", server.url, "is for http and sse, and this is a stdio server"),
        ("headers", server.headers, "are for http and sse, and this is a stdio server"),
        (
            "sandbox",
            server.sandbox is False and is_boxed,
            "cannot be false with network, sandboxRead or sandboxWrite, which are those of its box",
        ),
    ]
    if server.type != "stdio":
        is_wrong = server.url and not is_http_url(server.url)
        rules = [
            ("url", not server.url, f"is missing, and {server.type} needs one"),
            ("url", is_wrong, "must begin with http:// or https:// and name a host"),
            *((key, values.get(key) is not None, foreign) for key in _OF_BOX),
            ("env", server.env, f"{foreign}: use headers"),
        ]
    has_both = server.enabled_tools is not None and server.disabled_tools is not None
    rules.append(("disabled_tools", has_both, "cannot be combined with enabledTools: keep one of the two"))
    return [(key, rule) for key, is_broken, rule in rules if is_broken]


def _chosen_tools(value: Value, _: _Key) -> list[str] | None:
    names = as_names(value)
    if names == ["*"]:
        return None
    if not names:
        raise WrongValue("must name at least one tool, or be left out")
    return names


def is_http_url(text: str) -> bool:
    """Whether `text` is a URL of HTTP with a host; one that begins with `${VAR}` may become one."""
    if text.startswith("${"):
        return True
    try:
        parts = urlsplit(text)
        _ = parts.port  # read only to be checked
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not any(c.isspace() for c in text)


_READERS: Mapping[str, Callable[[Value, _Key], object]] = {
    **{field: _part_of(kind, fields_of(kind)) for field, kind in PARTS.items()},
    **dict.fromkeys(NAME_LISTS, lambda value, _: as_names(value)),
    **dict.fromkeys(("effort", "sandbox", "isolation", "on_ask_timeout"), _choice),
    **dict.fromkeys(("allowed_domains", "blocked_domains"), _domains),
    **dict.fromkeys(("enabled_tools", "disabled_tools"), _chosen_tools),
    **dict.fromkeys(("output_schema", "output_schema_path"), _output_schema),
    "name": _name,
    "description": _description,
    "tools": _tools,
    "model": _model,
    "mcp_servers": lambda value, key: read_servers(value, key.line, key.reading),
    "mcpServers.type": lambda value, key: _OTHER_TYPES.get(str(_choice(value, key)), _choice(value, key)),
    "web_search": _web(WebSearchBounds),
    "web_fetch": _web(WebFetchBounds),
    **dict.fromkeys(("sandbox_read", "mcpServers.sandbox_write"), lambda value, _: as_absolute_paths(value)),
    "sandbox_write": lambda value, _: as_paths(value),
    "code_mode": _code_mode,
    "runner": _runner,
    "failIf.exit_codes": _exit_codes,
    "failIf.output": _pattern,
    "hooks": _hooks,
    "system_prompt_path": _system_prompt_path,
}
"""By the field, which may have another meaning in a part: `mcpServers.type`. All others are read as text."""


# -- rules for the meaning of a value, and for two values together


def _check(agent: AgentDefinition, lines: Mapping[str, int], notes: Notes) -> None:
    is_built_in, runner = agent.runner == "messages", agent.runner
    has_placeholder = any("{systemPrompt}" in word for word in agent.args)
    is_noted = any(reason.startswith("command ") for reason in notes.reasons("fault"))
    placement = agent.placement or Placement()
    of_slurm = ", ".join(placement.model_dump(exclude={"on"}, exclude_none=True))
    rules: list[tuple[str, object, str]] = [
        (
            "base_url",
            agent.base_url and not is_http_url(agent.base_url),
            "baseUrl must begin with http:// or https:// and name a host",
        ),
        (
            "model",
            agent.other_models and not is_built_in,
            f"model cannot be a list for the runner {runner}: name one, or choose runner: messages",
        ),
        (
            "api_key_env",
            not _VARIABLE.fullmatch(agent.api_key_env),
            "apiKeyEnv must be the name of an environment variable, not the key itself",
        ),
        *(("env", is_broken, f"env {reason}") for is_broken, reason in rules_of_variables(agent.env)),
        (
            "command",
            is_built_in and agent.command,
            "command is for runner: command and runner: acp: add one of them, or leave command out",
        ),
        (
            "runner",
            runner in ("command", "acp") and not agent.command and not is_noted,
            f"command is missing, and runner: {runner} needs one",
        ),
        (  # read from here, it would be no program of a flow: its text is trusted by no hash
            "runner",
            runner == "flow",
            "runner: flow is that of files named NAME.flow.py: name the program so, or leave runner out",
        ),
        (
            "placement",
            placement.on not in (None, "slurm") and of_slurm,
            f"placement with on: {placement.on} cannot keep {of_slurm}: leave it out, or set on: slurm",
        ),
        (
            "fail_if",
            is_built_in and agent.fail_if != FailIf(),
            "failIf is for runner: command: add it, or leave failIf out",
        ),
        (  # with acp, the prompt goes with the task; without a command, its arguments cannot be judged
            "runner",
            runner == "command" and agent.command and agent.system_prompt.strip() and not has_placeholder,
            "the system prompt cannot reach the program of runner: command: put {systemPrompt} into args, or "
            "leave it out",
        ),
    ]
    for name, is_broken, reason in rules:
        if is_broken:
            notes.fault(reason, lines.get(name))
    for model in [agent.model or "", *agent.other_models] if is_built_in else []:
        if any(c.isspace() for c in resolve_model(model)):
            reason = f"model must be the id of a model without spaces, not {shorten(model)}"
            notes.fault(reason, lines.get("model"))
        elif (near := misspelt_alias(model)) and not agent.base_url:
            notes.warn(f"model {shorten(model)} is not known (nearest: {near})", lines.get("model"))
    if not agent.description:
        notes.warn("there is no description, so nobody can tell when to use this agent")
    if (length := len(agent.description)) > LONG_DESCRIPTION:
        notes.warn(f"the description has {length:,} characters, and every client reads it: shorten it")
    if not agent.system_prompt and is_built_in:
        notes.warn("there is no system prompt")
    # A caller's words are data, and so are keys that are not pinned: `sh -c "echo {prompt}"` executes them.
    codes = (code for flag, code in pairwise(agent.args) if re.fullmatch("-[a-z]*c", flag))
    if found := re.search(r"\{(prompt|systemPrompt|model)\}", "\n".join(codes)):
        reason = "in the text after -c is executed as a part of it: make it an argument of its own"
        notes.warn(f"{found[0]} {reason}", lines.get("args"))
