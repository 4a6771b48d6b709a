"""Which of the workspace's tools an agent file asks for (SPEC section 6). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

_VIEW = frozenset({"view"})
_EDITOR = frozenset({"view", "edit"})
_ALL = frozenset({"bash", "view", "edit", "grep", "glob"})

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
}
_REVOKES = _GRANTS | {name: frozenset({"edit"}) for name in ("write", "edit", "multiedit")}


@dataclass(frozen=True)
class Selection:
    """The tools for files and programs that a run may use, and the other names in its file.

    `view` and `edit` are the two halves of the editor. `mcp` holds `mcp__<server>` and
    `mcp__<server>__<tool>` names as they were written, None if the file asks for every tool of every server;
    `mcp_disallowed` those that are taken away. `unknown` are names that no tool has: worth a warning.
    `restricted` are names with a condition, such as `Bash(git diff:*)`: that promise cannot be kept, so the
    tool is withheld and the run has to be refused.
    """

    bash: bool = False
    view: bool = False
    edit: bool = False
    grep: bool = False
    glob: bool = False
    mcp: list[str] | None = field(default_factory=list)
    mcp_disallowed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
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
        mcp=_mcp_names(wanted, removed),
        mcp_disallowed=removed.mcp,
        unknown=_once([*wanted.unknown, *removed.unknown]),
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
        elif restriction:
            reading.restricted.append(name)
            reading.withheld |= _REVOKES[plain.lower()]
        else:
            reading.capabilities |= table[plain.lower()]
            reading.everything |= plain == "*"
    return reading


def _split(name: str) -> tuple[str, str]:
    """Return the name and its restriction; `Bash(*)` restricts nothing."""
    plain, bracket, rest = name.partition("(")
    restriction = bracket + rest
    return (plain.strip(), "") if restriction.replace(" ", "") == "(*)" else (plain.strip(), restriction)


def _mcp_names(wanted: _NamesRead, removed: _NamesRead) -> list[str] | None:
    if removed.everything:
        return []
    return None if wanted.everything else _once(wanted.mcp)


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))
