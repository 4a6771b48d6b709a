"""The tools that an agent file asks for by the names in its `tools` (SPEC section 6). Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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
        mcp=_mcp_names(wanted, removed),
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
    return (
        (plain.strip(), "")
        if restriction.replace(" ", "") in _NO_RESTRICTION
        else (plain.strip(), restriction)
    )


def _domains(plain: str, restriction: str) -> list[str]:
    """Return the domains of `WebFetch(domain:...)`, empty for any other condition."""
    if plain.lower() not in ("webfetch", "web_fetch"):
        return []
    found = [_DOMAIN.fullmatch(part) for part in restriction.strip().strip("()").split(",")]
    return [match[1].lower() for match in found if match is not None] if all(found) else []


def _mcp_names(wanted: _NamesRead, removed: _NamesRead) -> list[str] | None:
    if removed.everything:
        return []
    return None if wanted.everything else _once(wanted.mcp)


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))
