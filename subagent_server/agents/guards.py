"""Limits, guards and conditions that agent files name in the spelling of other tools.

Each is honoured, or the run is refused with the name of its key: an agent never runs with more than its
author meant to allow (SPEC section 3). A permission mode means what Claude Code means by it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from subagent_server.agents.yaml_reader import (
    Block,
    Notes,
    Value,
    WrongValue,
    as_json,
    as_names,
    as_text,
    canonical,
    is_null,
)
from subagent_server.run.agent_definition import CODE_TOOL_NAME, AgentDefinition, PermissionMode, select
from subagent_server.run.errors import shorten

_WRITERS = ["Bash", "Write", "Edit"]
_MODES: Mapping[str, PermissionMode] = {canonical(mode): mode for mode in get_args(PermissionMode)}
_QWEN: Mapping[str, PermissionMode] = {"autoedit": "acceptEdits", "yolo": "bypassPermissions"}
_OPENCODE = {
    "bash": "Bash",
    "edit": "Edit",
    "glob": "Glob",
    "grep": "Grep",
    "list": "LS",
    "read": "Read",
    "todowrite": "TodoWrite",
    "webfetch": "WebFetch",
    "websearch": "WebSearch",
    "write": "Write",
}
"""The tools of opencode, by the names of its key `permission`."""


@dataclass
class Guards:
    """The effect of the guards of one file: tools that are taken away, tools to ask for, and refusals."""

    notes: Notes
    mode: tuple[PermissionMode, str, int] | None = None
    """With the key as it was written, and its line."""
    denied: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def refuse(self, key: str, line: int | None, what: str = "") -> None:
        """Refuse the runs of this agent, whoever carries them out."""
        message = f" ({what})" if what else ""
        self.notes.fault(f"{shorten(key)} is a limit that nothing here keeps{message}: take it out", line)

    def read(self, key: str, value: Value, line: int) -> bool:
        """Take a key in, if it is one of these guards; return whether it is."""
        reader = _READERS.get(canonical(key))
        if reader is not None and not is_null(value):
            reader(self, key, value, line)
        return reader is not None

    def read_tools(self, value: Block, line: int | None) -> None:
        """Take in `tools` as opencode has it: a mapping in which `false` takes a tool away."""
        for name, wanted in value.items():
            content = as_json(wanted)
            if not isinstance(content, bool):
                self.notes.fault(
                    "tools must be a list of names, or a mapping of names to true or false", line
                )
                return
            if not content:
                self.denied.append(_OPENCODE.get(name.lower(), name))

    def applied(self, agent: AgentDefinition) -> AgentDefinition:
        """Return the agent with the guards in its own keys; what cannot be kept is a fault."""
        line = agent.lines.get("hooks")
        if agent.hooks and agent.runner != "claude":
            self.notes.fault("hooks are kept by `runner: claude` alone: choose it, or take them out", line)
        if self.mode is not None:
            self._apply(*self.mode, agent)
            agent = agent.model_copy(update={"permission_mode": self.mode[0]})
        disallowed = list(dict.fromkeys([*agent.disallowed_tools, *self.denied]))
        left = select(agent.tools, disallowed)
        present = {
            "Bash": left.bash,
            "Write": left.edit,
            "Edit": left.edit,
            "Read": left.view,
            "Grep": left.grep,
            "Glob": left.glob,
            "LS": left.ls,
        }
        asked = [name for name in self.asked if present.get(name, True)]
        ask = list(dict.fromkeys([*agent.ask, *asked]))
        return agent.model_copy(update={"disallowed_tools": disallowed, "ask": ask})

    def _apply(self, mode: PermissionMode, key: str, line: int, agent: AgentDefinition) -> None:
        if mode == "plan":
            self.denied += _WRITERS
        if mode == "bypassPermissions" or agent.runner != "messages":
            return
        if mode in ("plan", "dontAsk"):  # tools that would be asked for are refused
            self.denied += [*_WRITERS, CODE_TOOL_NAME]
        elif mode in ("default", "acceptEdits"):
            self.asked += ["Bash"] if mode == "acceptEdits" else _WRITERS
        for what in _not_kept(mode, agent):
            message = f"{key}: {mode} cannot be kept for {what} by the built-in loop"
            self.notes.fault(f"{message}: take that out, or choose `runner: claude`", line)


def _not_kept(mode: PermissionMode, agent: AgentDefinition) -> Iterator[str]:
    """Yield the tools that the built-in loop cannot bound by a permission mode."""
    if mode == "auto":
        yield "any tool"
        return
    if agent.mcp_servers or agent.named_servers:
        yield "the tools of MCP servers"
    selection = agent.selection
    if mode in ("plan", "dontAsk"):
        if agent.agents:
            yield "the agents that it may start"
    elif agent.enabled_code_mode is not None:
        yield "programs of code mode"
    if mode != "plan" and (selection.web_fetch or selection.web_search):
        yield "WebFetch and WebSearch"


# -- the keys


def _permission_mode(guards: Guards, key: str, value: Value, line: int) -> None:
    text = canonical(_text(value))
    mode = _QWEN.get(text) if canonical(key) == "approvalmode" else None
    mode = mode or _MODES.get(text)
    if mode is None:
        known = ", ".join(_MODES.values())
        guards.notes.fault(f"{shorten(key)} must be one of {known}, not {shorten(_text(value))}", line)
    elif guards.mode is not None:
        guards.notes.fault(f"{shorten(key)} says again what {guards.mode[1]} says, so say it once", line)
    else:
        guards.mode = mode, key, line


def _read_only(guards: Guards, key: str, value: Value, line: int) -> None:
    """`readonly: true` of Cursor."""
    if canonical(_text(value)) not in _NO:
        _permission_mode(guards, key, "plan", line)


def _permission(guards: Guards, key: str, value: Value, line: int) -> None:
    """`permission` of opencode: `allow`, `ask` or `deny`, for each tool or for all."""
    block = Block()
    if isinstance(value, Block):
        block = value
    else:
        block.put("*", value, line)
    for tool, wanted in block.items():
        at = block.lines[tool]
        rule = _text(wanted).strip().lower()
        names = [*_OPENCODE.values()] if tool == "*" else [_OPENCODE[tool]] if tool in _OPENCODE else []
        if rule == "allow":
            continue
        if rule == "deny" and tool != "*" and names:
            guards.denied += names
        elif rule == "ask" and tool in ("bash", "edit", "glob", "grep", "list", "read", "write"):
            guards.asked += names
        else:
            guards.refuse(f"{key}.{tool}", at, _TOOLS)


def _denied(guards: Guards, key: str, value: Value, line: int) -> None:
    try:
        guards.denied += as_names(value)
    except WrongValue as error:
        guards.notes.fault(f"{shorten(key)} {error}", line)


def _refused_unless(*harmless: str, instead: str = "") -> Callable[[Guards, str, Value, int], None]:
    """Return the reader of a key that nothing here keeps; some of its values limit nothing."""

    def read(guards: Guards, key: str, value: Value, line: int) -> None:
        if value and canonical(_text(value)) not in harmless:
            guards.refuse(key, line, instead)

    return read


def _not_loaded(guards: Guards, key: str, value: Value, line: int) -> None:
    """What an agent would know elsewhere, and does not know here."""
    if value and canonical(_text(value)) not in (*_NO, "none"):
        words = "is not loaded here: write what it is needed for into the prompt, and take it out"
        guards.notes.fault(f"{shorten(key)} {words}", line)


def _text(value: Value) -> str:
    try:
        return as_text(value)
    except WrongValue:
        return "a list or a mapping"


_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")
_TOOLS = "say it by tools, disallowedTools and ask"
_TURNS, _TIME, _COST = "say it by maxTurns", "say it by timeoutSeconds", "say it by budgetUsd"
_READERS: Mapping[str, Callable[[Guards, str, Value, int], None]] = {
    # Claude Code, its skills, and Qwen Code
    "permissionmode": _permission_mode,
    "approvalmode": _permission_mode,
    **dict.fromkeys(("memory", "skills"), _not_loaded),
    "disablemodelinvocation": _refused_unless(*_NO),
    "permissions": _refused_unless(instead=_TOOLS),
    # of later versions
    **dict.fromkeys(("gates", "gateattempts", "parkafterseconds"), _refused_unless()),
    # Codex
    "sandboxmode": _refused_unless("dangerfullaccess", instead="say it by tools, sandbox and network"),
    "approvalpolicy": _refused_unless("never", instead="say it by ask"),
    # opencode and Cursor
    "permission": _permission,
    **dict.fromkeys(("disable", "disabled"), _refused_unless(*_NO)),
    "enabled": _refused_unless(*_YES),
    "readonly": _read_only,
    # Gemini CLI, goose, Qwen Code and workflows of GitHub
    **dict.fromkeys(("timeoutmins", "timeoutminutes"), _refused_unless(instead=_TIME)),
    "runconfig": _refused_unless(instead="say it by maxTurns and timeoutSeconds"),
    "retry": _refused_unless(),
    # Kiro and others
    "toolssettings": _refused_unless(),
    **dict.fromkeys(("deniedtools", "excludetools", "excludedtools", "blockedtools"), _denied),
    **dict.fromkeys(("deny", "denytools", "disabledtools", "forbiddentools"), _denied),
    **dict.fromkeys(("maxiterations", "steps", "maxsteps", "turns"), _refused_unless(instead=_TURNS)),
    **dict.fromkeys(("timeout", "timeoutms", "maxtime"), _refused_unless(instead=_TIME)),
    **dict.fromkeys(
        ("budget", "maxcost", "maxcostusd", "maxbudget", "maxbudgetusd"), _refused_unless(instead=_COST)
    ),
}
"""By the canonical spelling of the key."""
GUARDS = frozenset(_READERS)
