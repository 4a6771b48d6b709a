"""The definition of an agent, the same for every format of agent file."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from subagent_server.run.records import Money, Record
from subagent_server.run.states import LAUNCHER

# -- The tools that an agent file asks for by the names in its `tools` (SPEC section 6). Pure.


_VIEW = frozenset({"view"})
_EDITOR = frozenset({"view", "edit"})
_ALL = frozenset({"bash", "view", "edit", "grep", "glob"})

TODO_TOOLS = ("todo_write", "task_create", "task_update", "task_list", "task_get")

_GRANTS: dict[str, frozenset[str]] = {
    "*": _ALL,
    "bash": frozenset({"bash"}),
    "read": _VIEW,
    "write": _EDITOR,
    "edit": _EDITOR,
    "multiedit": _EDITOR,
    "str_replace_based_edit_tool": _EDITOR,
    "grep": frozenset({"grep"}),
    "glob": frozenset({"glob"}),
    "ls": frozenset({"ls"}),
    "websearch": frozenset({"web_search"}),
    "web_search": frozenset({"web_search"}),
    "webfetch": frozenset({"web_fetch"}),
    "web_fetch": frozenset({"web_fetch"}),
    **{name: frozenset({name}) for name in TODO_TOOLS},
    **{name.replace("_", ""): frozenset({name}) for name in TODO_TOOLS},
}
"""`*` grants the tools on files and programs. The others cost something in each request, and are named."""
_REVOKES = _GRANTS | {
    "*": frozenset().union(*_GRANTS.values()),
    **{name: frozenset({"edit"}) for name in ("write", "edit", "multiedit")},
}
_NO_RESTRICTION = ("(*)", "(domain:*)")
_DOMAIN = re.compile(r"\s*domain\s*:\s*(?:\*\.)?([^\s:/]+(?:/\S*)?)\s*")
"""A condition of `WebFetch` that the API keeps itself."""
NAMES = (
    *("Bash", "Read", "Write", "Edit", "MultiEdit", "Grep", "Glob", "LS", "WebSearch", "WebFetch"),
    *("TodoWrite", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet"),
)
"""The names of agent files that mean a tool here, as people write them."""


@dataclass(frozen=True)
class Selection:
    """The tools for files and programs that a run may use, and the other names in its file.

    `view` and `edit` are the two halves of the editor. `fetch_domains` are those of `WebFetch(domain:...)`,
    empty if pages of all domains may be fetched. `todos` are the tools of the to-do list. `mcp` holds
    `mcp__<server>` and `mcp__<server>__<tool>` names as they were written, None if the file asks for every
    tool of every server; `mcp_disallowed` those that are taken away. `unknown` are names that no tool has,
    `unknown_disallowed` such names in `disallowedTools`.
    `restricted` are names with a condition, such as `Bash(git diff:*)`: that promise cannot be kept, so the
    tool is withheld and the run has to be refused.
    """

    bash: bool = False
    view: bool = False
    edit: bool = False
    grep: bool = False
    glob: bool = False
    ls: bool = False
    web_search: bool = False
    web_fetch: bool = False
    fetch_domains: list[str] = field(default_factory=list)
    todos: list[str] = field(default_factory=list)
    mcp: list[str] | None = field(default_factory=list)
    mcp_disallowed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unknown_disallowed: list[str] = field(default_factory=list)
    restricted: list[str] = field(default_factory=list)


@dataclass
class _NamesRead:
    """A list of names, sorted by kind."""

    capabilities: set[str] = field(default_factory=set)
    mcp: list[str] = field(default_factory=list)
    everything: bool = False
    unknown: list[str] = field(default_factory=list)
    restricted: list[str] = field(default_factory=list)
    withheld: set[str] = field(default_factory=set)
    domains: list[str] = field(default_factory=list)


def select(tools: list[str] | None, disallowed: list[str]) -> Selection:
    """Return the selection by the keys `tools` (None: everything) and `disallowedTools` of an agent file.

    Names are those of agent files in the wild or our own; upper and lower case do not matter. Disallowing
    `Write` or `Edit` takes every writing command away, disallowing `Read` takes `view` away.
    """
    wanted = _read(["*"] if tools is None else tools, _GRANTS)
    removed = _read(disallowed, _REVOKES)
    left = wanted.capabilities - wanted.withheld - removed.capabilities - removed.withheld
    return Selection(
        bash="bash" in left,
        view="view" in left,
        edit="edit" in left,
        grep="grep" in left,
        glob="glob" in left,
        ls="ls" in left,
        web_search="web_search" in left,
        web_fetch="web_fetch" in left,
        fetch_domains=_once(wanted.domains),
        todos=[name for name in TODO_TOOLS if name in left],
        mcp=[] if removed.everything else None if wanted.everything else _once(wanted.mcp),
        mcp_disallowed=removed.mcp,
        unknown=_once(wanted.unknown),
        unknown_disallowed=_once(removed.unknown),
        restricted=_once([*wanted.restricted, *removed.restricted]),
    )


def _read(names: Iterable[str], table: dict[str, frozenset[str]]) -> _NamesRead:
    reading = _NamesRead()
    for name in filter(None, (raw.strip() for raw in names)):
        plain, restriction = _split(name)
        if plain.lower().startswith("mcp__"):
            (reading.restricted if restriction else reading.mcp).append(name)
        elif plain.lower() not in table:
            reading.unknown.append(name)
        elif restriction and table is _GRANTS and (domains := _domains(plain, restriction)):
            reading.capabilities.add("web_fetch")
            reading.domains += domains
        elif restriction:
            reading.restricted.append(name)
            reading.withheld |= _REVOKES[plain.lower()]
        else:
            reading.capabilities |= table[plain.lower()]
            reading.everything |= plain == "*"
    return reading


def _split(name: str) -> tuple[str, str]:
    """Return the name and its restriction; `Bash(*)` and `WebFetch(domain:*)` restrict nothing."""
    plain, bracket, rest = name.partition("(")
    restriction = bracket + rest
    return plain.strip(), "" if restriction.replace(" ", "") in _NO_RESTRICTION else restriction


def _domains(plain: str, restriction: str) -> list[str]:
    """Return the domains of `WebFetch(domain:...)`, empty for any other condition."""
    if plain.lower() not in ("webfetch", "web_fetch"):
        return []
    found = [_DOMAIN.fullmatch(part) for part in restriction.strip().strip("()").split(",")]
    return [match[1].lower() for match in found if match is not None] if all(found) else []


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


# -- Names of code mode that several rooms share: its tool, and the files of a program in `code/NNN/`.


CODE_TOOL_NAME = "execute_python_code"
PROGRAM_FILE, CALLS_FILE, OUTPUT_FILE, END_FILE = "program.py", "calls.jsonl", "output.txt", "result.json"


JsonSchema = dict[str, object] | bool
RUN_AGENT_NAME = "run_agent"
"""The tool that starts any agent, by its name. So no agent has a tool of this name."""
_NAME_LENGTH = 48
_SUFFIX_LENGTH = 6
_NOT_IN_TOOLS = re.compile(r"[^a-z0-9_]")
_LATIN_LETTER = re.compile(r"LATIN SMALL (?:LETTER|LIGATURE) ([A-Z]{1,2})( WITH .*)?")

PermissionMode = Literal["default", "acceptEdits", "auto", "dontAsk", "bypassPermissions", "plan"]
RunnerName = Literal["messages", "claude", "codex", "gemini", "acp", "command", "flow"]
"""The names of the runners; `worker/runners.py` has those that this installation opens."""
BUILT_IN = frozenset({"messages", "flow"})
"""The runners whose programs and MCP servers the worker starts itself: under `auto` in a box."""
ACP_PROGRAMS: dict[str, tuple[str, ...]] = {
    "opencode": ("opencode", "acp"),
    "qwen": ("qwen", "--acp"),
    # it takes no server with its session, and would ask whether it may ask
    "copilot": ("copilot", "--acp", "--additional-mcp-config", "@{mcpConfig}", "--allow-tool", "subagent"),
    "claude-acp": ("claude-agent-acp",),
    "codex-acp": ("codex-acp",),
}
"""Other names that `runner` may have in an agent file: `acp` with this command, and these arguments."""


class ServerDefinition(Record):
    """One MCP server of a run (SPEC section 8). `timeout` and `call_timeout_seconds` are in seconds.

    `sandbox` decides where a stdio server works (`sandbox/server_locations.py`): None in a box if there can
    be one, True in a box or not at all, False outside of every box or not at all. `network` (None: that of
    the agent), `sandbox_read` and `sandbox_write` are settings of its box.
    """

    type: Literal["stdio", "http", "sse"] = "stdio"
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    timeout: float = Field(default=60, ge=0, allow_inf_nan=False)
    call_timeout_seconds: float = Field(default=600, ge=0, allow_inf_nan=False)
    enabled_tools: list[str] | None = None
    disabled_tools: list[str] | None = None
    prefix: bool = False
    sandbox: bool | None = None
    network: bool | None = None
    sandbox_read: list[str] = Field(default_factory=list)
    sandbox_write: list[str] = Field(default_factory=list)

    @property
    def insists_on_box(self) -> bool:
        """Whether its entry asks for what only a box can keep."""
        return self.sandbox is True or self.network is False


class CodeMode(Record):
    """Whether the model calls the run's MCP tools as functions of one program (SPEC section 9).

    With more than `stub_characters` of stubs the model is shown names alone, and a program looks the rest up.
    """

    enabled: bool = False
    excluded_tools: list[str] = Field(default_factory=list)
    max_timeout_seconds: int = Field(default=300, ge=1, le=300)
    python: str | None = None
    stub_characters: int = Field(default=16_000, ge=0)


_Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
"""Up to 31 years: a moment that lies so far ahead still has a date."""


class Limits(Record):
    """The limits that end a run. Seconds of working time: waits for a slot or an answer do not count.

    `idle_timeout_seconds` is how long a program that carries out the run may be silent.
    """

    max_turns: int = Field(default=100, ge=1)
    timeout_seconds: _Seconds = 3600
    budget_usd: Annotated[Money, Field(ge=0)] | None = None
    ask_timeout_seconds: _Seconds = 3600
    on_ask_timeout: Literal["continue", "fail"] = "continue"
    idle_timeout_seconds: _Seconds = 900


class FailIf(Record):
    """The signs that the run of a program has failed: a pattern in its output, and exit codes.

    Without `exit_codes` every code except 0 is one. A signal always is.
    """

    output: str | None = None
    exit_codes: list[int] | None = None


class SandboxLimits(Record):
    """Bounds for the programs of a run: bytes of memory, processes, bytes of one file."""

    memory_bytes: int = Field(default=4 << 30, ge=1)
    processes: int = Field(default=256, ge=1)
    file_bytes: int = Field(default=1 << 30, ge=1)


class Placement(Record):
    """Where runs of an agent work, and what they ask of the engine there. Nothing else can be asked."""

    on: str | None = Field(default=None, pattern=f"^({LAUNCHER})$")
    partition: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.,-]{1,200}$")
    cpus: int | None = Field(default=None, ge=1, le=4096)
    memory: str | None = Field(default=None, pattern=r"^[0-9]{1,9}[KMGT]?$")
    time: str | None = Field(default=None, pattern=r"^([0-9]{1,3}-)?[0-9]{1,5}(:[0-9]{2}){0,2}$")
    gpus: str | None = Field(default=None, pattern=r"^([A-Za-z0-9_.-]{1,64}:)?[0-9]{1,4}$")
    constraint: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.&|*()\[\],-]{1,200}$")


class WebSearchBounds(Record):
    """Bounds of the web searches of a run: how many, and which domains are allowed or blocked."""

    max_uses: int = Field(default=20, ge=1)
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class WebFetchBounds(Record):
    """Bounds of the web pages that a run fetches: how many, how long (about), and from which domains."""

    max_uses: int = Field(default=20, ge=1)
    max_content_tokens: int = Field(default=20_000, ge=1)
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


WEB_TOOL_NAMES = ("web_search", "web_fetch")


@dataclass(frozen=True)
class WebSelection:
    """The web tools of an agent with their bounds; None for a tool that it does not name.

    `problem` is the reason, as a sentence, why the file cannot be kept to.
    """

    search: WebSearchBounds | None = None
    fetch: WebFetchBounds | None = None
    problem: str | None = None

    @property
    def names(self) -> list[str]:
        """The names that the model sees."""
        return [
            name for name, bounds in zip(WEB_TOOL_NAMES, (self.search, self.fetch), strict=True) if bounds
        ]


class Verdict(Record):
    """What the one judge of agents has found (`verbs/check_agent.py`).

    It goes to the worker with the definition, in the memory file alone, and nobody judges again. `model` is
    an id, and so are `other_models`; `is_model_known` is False for a model that the API may not have. No tool
    here has one of the names `missing_tools`, and the start has warned of them.
    """

    selection: Selection
    web: WebSelection
    model: str
    other_models: list[str] = Field(default_factory=list)
    is_model_known: bool
    missing_tools: list[str] = Field(default_factory=list)


class AgentDefinition(Record):
    """Everything a run needs to know of its agent (SPEC section 3).

    `other_models` are called, in their order, when `model` has failed.
    `tools` is None where the file has no such key: the model gets every tool. For `faults`, mistakes in the
    file, a run is refused with `config`; `warnings` stop nothing; `unknown` are the keys that nothing here
    knows. `named_servers` are defined elsewhere and looked up when a run starts.
    `sandbox_write` are paths below the working directory that a run may write although other programs execute
    the files there, or although agents are there (`lifted`), and paths elsewhere that the programs of a
    sandbox may write (`write_elsewhere`). `sandbox_read` are paths elsewhere that a sandbox shows, too.
    `permission_mode` and `hooks` are for Claude Code: what the built-in loop keeps of the mode is in
    `disallowed_tools` and `ask`.
    `distinct_tool` is True if another agent has the plain tool name of this one.
    `by_contract` is True for the agent of `agent_start`, which has no file: its run ends by
    `agent_complete`.
    `input_schema` is that of the arguments of a flow, whose program is its `system_prompt`; it is trusted by
    its hash.
    `read_from` are the files from which keys such as `systemPromptPath` were read, links resolved.
    `lines` are the lines of the file's keys, as people write them (`maxTurns`, `mcpServers.github`).
    `served` are the entries of `mcpServers` that are agents of this installation (`agents/named_servers.py`).
    The judge takes them out of `mcp_servers`, and they go to the worker in the memory file alone.
    """

    name: str
    distinct_tool: bool = False
    by_contract: bool = False
    description: str = ""
    system_prompt: str = ""
    runner: RunnerName = "messages"
    model: str | None = None
    other_models: list[str] = Field(default_factory=list)
    base_url: str | None = None
    api_key_env: str = "ANTHROPIC_API_KEY"
    max_tokens: int | None = Field(default=None, ge=1)
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    tools: list[str] | None = None
    disallowed_tools: list[str] = Field(default_factory=list)
    ask: list[str] = Field(default_factory=list)
    permission_mode: PermissionMode | None = None
    hooks: dict[str, object] = Field(default_factory=dict)
    agents: list[str] = Field(default_factory=list)
    mcp_servers: dict[str, ServerDefinition] = Field(default_factory=dict)
    named_servers: list[str] = Field(default_factory=list)
    code_mode: CodeMode | None = None
    sandbox: Literal["auto", "bwrap", "none"] = "auto"
    network: bool = True
    sandbox_limits: SandboxLimits | None = None
    placement: Placement | None = None
    sandbox_read: list[str] = Field(default_factory=list)
    sandbox_write: list[str] = Field(default_factory=list)
    output_schema: JsonSchema | None = None
    input_schema: JsonSchema | None = None
    program_hash: str | None = None
    web_search: WebSearchBounds | None = None
    web_fetch: WebFetchBounds | None = None
    limits: Limits = Limits()
    max_concurrent: int | None = Field(default=None, ge=1)
    isolation: Literal["none", "worktree"] = "none"
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    fail_if: FailIf = FailIf()
    source: Path | None = None
    read_from: dict[str, Path] = Field(default_factory=dict)
    faults: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    unknown: dict[str, object] = Field(default_factory=dict)
    lines: dict[str, int] = Field(default_factory=dict, exclude=True)
    verdict: Verdict | None = Field(default=None, exclude=True)
    served: dict[str, "ServedAgent"] = Field(default_factory=dict, exclude=True)

    @property
    def selection(self) -> Selection:
        """The tools that its runs may use."""
        if self.verdict is not None:
            return self.verdict.selection
        return select(self.tools, self.disallowed_tools)

    @property
    def is_built_in(self) -> bool:
        """Whether the worker starts its programs and MCP servers, and no program of a runner does."""
        return self.runner in BUILT_IN

    def bounded(self, usd: Decimal) -> "AgentDefinition":
        """Return the same agent with a budget of at most so much, in USD."""
        own = self.limits.budget_usd
        limits = self.limits.model_copy(update={"budget_usd": usd if own is None else min(own, usd)})
        return self.model_copy(update={"limits": limits})

    @property
    def may_delegate(self) -> bool:
        """Whether its runs may start others."""
        return bool(self.agents or self.served) or self.runner == "flow"

    @property
    def enabled_code_mode(self) -> CodeMode | None:
        """Code mode, if it is on and its tool is not forbidden."""
        is_on = self.code_mode is not None and self.code_mode.enabled
        is_forbidden = CODE_TOOL_NAME in self.disallowed_tools and self.runner != "flow"  # which is no tool
        return self.code_mode if is_on and not is_forbidden else None

    @property
    def lifted(self) -> list[str]:
        """The protected paths below the working directory that may be written all the same."""
        return [path for path in self.sandbox_write if not path.startswith(("/", "~/"))]

    @property
    def write_elsewhere(self) -> list[str]:
        """The paths outside the working directory that programs in a sandbox may write."""
        return [path for path in self.sandbox_write if path.startswith(("/", "~/"))]

    @property
    def written_by_servers(self) -> list[str]:
        """The paths outside the working directory that its MCP servers write in their boxes."""
        return [path for server in self.mcp_servers.values() for path in server.sandbox_write]

    @property
    def tool_name(self) -> str:
        """The name of the MCP tool that starts this agent."""
        return tool_name(self.name, distinct=self.distinct_tool)


class ServedAgent(Record):
    """An agent that an entry of `mcpServers` names, with that entry."""

    entry: ServerDefinition
    agent: AgentDefinition


def tool_name(agent_name: str, *, distinct: bool = False) -> str:
    """Return `run_<name>`: at most 48 characters of `[a-z0-9_]`, accents folded, `_` for anything else.

    A name of which no letter or digit is left, a `distinct` one, and one whose tool would be `run_agent`,
    ends in six hexadecimal digits that depend on nothing but the name (SPEC section 3).
    """
    name = agent_name.casefold()
    readable = _NOT_IN_TOOLS.sub("_", name) if name.isascii() else "".join(map(_folded, name))
    if not any(c.isalnum() for c in readable):
        readable, distinct = "agent", True
    distinct = distinct or f"run_{readable}" == RUN_AGENT_NAME
    if not distinct:
        return f"run_{readable[:_NAME_LENGTH]}"
    digits = hashlib.sha256(agent_name.encode("utf-8", "surrogatepass")).hexdigest()[:_SUFFIX_LENGTH]
    return f"run_{readable[: _NAME_LENGTH - _SUFFIX_LENGTH - 1]}_{digits}"


def _folded(character: str) -> str:
    """Return the ASCII letters of a letter with accents (`é`, `ø`, `æ`), `_` for anything else."""
    if unicodedata.combining(character):
        return ""
    base = "".join(c for c in unicodedata.normalize("NFKD", character) if c.isascii() and c.isalnum())
    if base or character == "_":
        return base or "_"
    latin = _LATIN_LETTER.fullmatch(unicodedata.name(character, ""))
    return latin[1].lower() if latin else "_"


# -- The web tools that an agent may use: what its `tools` name, and the bounds in its file. Pure.


def web_selection(agent: AgentDefinition) -> WebSelection:
    """Return the web tools that the selection of an agent leaves."""
    selection = agent.selection
    search = (agent.web_search or WebSearchBounds()) if selection.web_search else None
    fetch = (agent.web_fetch or WebFetchBounds()) if selection.web_fetch else None
    if fetch is not None and selection.fetch_domains:
        if fetch.allowed_domains or fetch.blocked_domains:
            return WebSelection(search, fetch, _TWICE)
        fetch = fetch.model_copy(update={"allowed_domains": selection.fetch_domains})
    chosen = WebSelection(search, fetch)
    if chosen.names and not agent.network:
        named = " and ".join(_NAMED[name] for name in chosen.names)
        return WebSelection(search, fetch, _NO_NETWORK.format(named=named))
    return chosen


_NAMED = {"web_search": "WebSearch", "web_fetch": "WebFetch"}
_TWICE = (
    "WebFetch(domain:...) in tools and the domains of webFetch cannot both be kept: give the domains in one "
    "of them alone."
)
_NO_NETWORK = (
    "network is false, and {named} in tools reach the web by way of the API: take them out of tools, or "
    "allow the network."
)
