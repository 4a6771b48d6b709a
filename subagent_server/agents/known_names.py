"""The names in an agent file: of models, of tools, and of agents; which of them are known, and the nearest.

`verbs/check_agent.py` asks for all doors. The view and the log of a run show the sentences about names that
nothing has, and about conditions that cannot be kept.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice

from subagent_server.run.agent_definition import (
    CODE_TOOL_NAME,
    NAMES,
    AgentDefinition,
    Verdict,
    select,
    tool_name,
    web_selection,
)
from subagent_server.run.errors import COMMANDS, shorten

_MOST_COMPARED = 80


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name that was probably meant, or None. Long names and lists are compared in part."""
    near = get_close_matches(name[:_MOST_COMPARED], list(islice(known, _MOST_COMPARED)), 1, likeness)
    return near[0] if near else None


# -- Models: the aliases of agent files (`sonnet`, `opus`, ...), and the ids that the API knows.


_SONNET = "claude-sonnet-5-5"

DEFAULT_MODEL = _SONNET
"""The model of an agent that names none, or has `inherit`: a run has no session to inherit one from."""

ALIASES: Mapping[str, str] = {
    "sonnet": _SONNET,
    "opus": "claude-opus-5-5",
    "haiku": "claude-haiku-5-5",
    "fable": "claude-fable-5-2",
    "mythos": "claude-mythos-5-2",
    "inherit": DEFAULT_MODEL,
    "default": DEFAULT_MODEL,
}


def resolve_model(name: str | None) -> str:
    """Return the model id for `name`; a name that is not an alias is an id and stays unchanged.

    Case does not matter to an alias. The long-context mark of agent files in the wild (`sonnet[1m]`) and a
    provider before the id (`anthropic/claude-...`) are dropped: the API knows neither. A title such as
    `Claude Sonnet 4.5` becomes its id.
    """
    text = (name or "").strip()
    bare = text.removeprefix("anthropic/").removesuffix("[1m]")
    title = bare.partition(" (")[0].lower()  # `Claude Sonnet 4.5 (copilot)`
    model = re.sub(r"[ .]+", "-", title) if title.startswith("claude ") else bare
    return ALIASES.get(bare.lower(), model) or DEFAULT_MODEL


def misspelt_alias(name: str | None) -> str | None:
    """Return the alias that was probably meant by a name that is neither an alias nor the id of a Claude."""
    model = resolve_model(name).lower()
    if "claude" in model:
        return None
    return nearest(model, ALIASES, likeness=0.75)


def has_known_price(name: str | None) -> bool:
    """Whether the list prices know the model, so that a budget can be kept."""
    # Imported here: only an agent with a budget pays for it.
    from genai_prices.data_snapshot import get_snapshot

    try:
        get_snapshot().find_provider_model(resolve_model(name), None, "anthropic", None)
    except LookupError:
        return False
    return True


def unknown_model(agent: AgentDefinition) -> str | None:
    """Return a sentence on a model that the API surely has not; at another address it may be there."""
    is_elsewhere = agent.runner != "messages" or agent.base_url
    for model in map(resolve_model, () if is_elsewhere else (agent.model, *agent.other_models)):
        if "claude" not in model.lower() and not misspelt_alias(model):
            why = f"model {shorten(model)} is no known model of the Messages API, and it has no known price"
            return (
                f"{why}: name one such as sonnet, give the `baseUrl` that has it, or choose another `runner`."
            )
    return None


# -- Tools and agents.


_MOST_NAMED = 10
_MOST_STEPS = 1_000
"""A name that takes more steps to look for counts as there. A new pattern takes 0.15 ms."""
_LONGEST_TOOL = 200
"""Characters: no API takes a tool of such a name."""
ALWAYS = frozenset({"ask_parent", "askuserquestion", "final_answer", "structuredoutput"})
"""Names that mean what every run has without naming it."""
_STARTS_AGENTS = frozenset({"task", "agent", *COMMANDS})
"""Names of tools that an agent has which may start others."""
_CALLED_BY_RUN = ("bash", "view", "edit", "grep", "glob", "ls", "todos")
"""The tools of a `Selection` that the run calls, so that it can ask first: the API calls the web tools."""
_ELSEWHERE = {
    "bashoutput": "Bash",
    "killbash": "Bash",
    "killshell": "Bash",
    "exitplanmode": None,
    "lsp": None,
    "notebookedit": "Edit",
    "notebookread": "Read",
    "skill": None,
    "list": "LS",
    "slashcommand": None,
    "todoread": "TaskList",
    "task": "the key `agents`",
    "agent": "the key `agents`",
    **dict.fromkeys(("croncreate", "taskoutput", "taskstop", "teamcreate", "toolsearch"), None),
}
"""Tools of Claude Code that are not here, and the nearest thing that is."""
_OF_OTHERS = {
    **dict.fromkeys(("shell", "local_shell", "run_shell_command", "launch-process", "terminal"), "Bash"),
    **dict.fromkeys(("execute", "execute_bash", "execute_command", "exec_command"), "Bash"),
    **dict.fromkeys(("runcommands", "runinterminal", "run_terminal_cmd"), "Bash"),
    **dict.fromkeys(("apply_patch", "applypatch", "replace", "replace_in_file", "apply_diff"), "Edit"),
    **dict.fromkeys(("create_file", "save-file", "str-replace-editor", "write_to_file"), "Edit"),
    **dict.fromkeys(("grep_search", "search_file_content"), "Grep"),
    **dict.fromkeys(("view", "view_file"), "Read"),
    "list_directory": "LS",
}
"""Tools of other programs with names unlike ours, and ours. Whoever takes such a tool away means ours."""


@dataclass(frozen=True)
class MissingName:
    """A name in `tools` or `agents` that nothing here has, with the nearest available name or means."""

    name: str
    nearest: str | None = None

    @property
    def shown(self) -> str:
        """The name as it is shown."""
        near = f" (nearest: {self.nearest})" if self.nearest else ""
        return f"{shorten(self.name)}{near}"


def verdict_of(agent: AgentDefinition) -> Verdict:
    """Return what the worker of a run needs to know about the tools and the model of its agent."""
    return Verdict(
        selection=agent.selection,
        web=web_selection(agent),
        model=resolve_model(agent.model),
        other_models=[resolve_model(model) for model in agent.other_models],
        is_model_known=unknown_model(agent) is None,
        missing_tools=[missing.name for missing in missing_tools(agent)],
    )


def missing_tools(agent: AgentDefinition) -> list[MissingName]:
    """Return the names in `tools` that no tool of a run has.

    A name may belong to a tool of an MCP server, whose tools are known only after a run has connected. So a
    name counts as missing only if the agent has no server, or if it is a tool of Claude Code that is not
    here.
    """
    if not agent.is_built_in or agent.tools is None:
        return []
    selection = select(agent.tools, [])
    servers = [_plain(name) for name in (*agent.mcp_servers, *agent.named_servers)]
    here = {*ALWAYS, *(_STARTS_AGENTS if agent.agents else ()), *map(tool_name, agent.agents)}
    missing = [
        _missing(name)
        for name in selection.unknown
        # Tools of servers are known only after a run has connected, so any name may be one of them.
        if (plain := _bare(name)) not in here and (not servers or plain in _ELSEWHERE)
    ]
    return missing + _missing_servers(selection.mcp or [], servers)


def _missing_servers(names: Sequence[str], servers: Sequence[str]) -> list[MissingName]:
    """Return the `mcp__` names of servers that the agent has not."""
    missing: list[MissingName] = []
    known, steps = set(servers), _MOST_STEPS
    for name in names:
        server = _plain(name).removeprefix("mcp__")
        parts = server.split("__")
        heads = ["__".join(parts[:number]) for number in range(1, len(parts) + 1)]
        patterns = [head for head in heads if "*" in head]
        steps -= len(patterns) * len(known)
        matches = steps < 0 or any(fnmatchcase(each, head) for each in known for head in patterns)
        if known.isdisjoint(heads) and not matches:
            near = nearest(server.partition("__")[0], servers)
            missing.append(MissingName(name, near and f"mcp__{near}"))
    return missing


def unused_servers(agent: AgentDefinition) -> str | None:
    """Return a sentence on MCP servers of which `tools` surely names no tool, so that a run may use none."""
    if not agent.is_built_in or agent.tools is None:
        return None
    selection = select(agent.tools, [])
    named = [_plain(name) for name in selection.mcp or []]
    if (
        selection.mcp is None
        or any("*" in name for name in named)
        or not {*ALWAYS, *_ELSEWHERE}.issuperset(map(_bare, selection.unknown))  # any may be one of theirs
    ):
        return None
    servers = {name: f"mcp__{_plain(name)}" for name in (*agent.mcp_servers, *agent.served)}
    unused = [
        name
        for name, whole in servers.items()
        if not any(each == whole or each.startswith(f"{whole}__") for each in named)
    ]
    if not unused:
        return None
    return (
        f"tools names no tool of {', '.join(map(shorten, unused[:_MOST_NAMED]))}, so a run may use none: add "
        f"{servers[unused[0]]} to tools for all of {shorten(unused[0])}, or leave the server out."
    )


def missing_guarded(agent: AgentDefinition, names: list[str]) -> list[MissingName]:
    """Return which names of `disallowedTools` or `ask` no tool of a run has, as far as this is known now.

    A tool of Claude Code that is not here is taken away as its author wants.
    """
    if not agent.is_built_in:
        return []
    selection = select([], names)
    servers = [_plain(name) for name in (*agent.mcp_servers, *agent.named_servers)]
    known = {*ALWAYS, *_STARTS_AGENTS, *_ELSEWHERE, CODE_TOOL_NAME, *map(tool_name, agent.agents)}
    missing = [
        _missing(name) for name in selection.unknown_disallowed if not servers and _bare(name) not in known
    ]
    return missing + _missing_servers(selection.mcp_disallowed, servers)


def _not_askable(agent: AgentDefinition) -> list[MissingName]:
    """Return which names of `ask` mean no tool that the run calls itself, as far as this is known now."""
    missing = missing_guarded(agent, agent.ask)
    if agent.mcp_servers or agent.named_servers:
        return missing
    own = agent.selection
    for name in agent.ask:
        named = select([name], [])
        is_known = not (named.unknown or named.mcp or named.restricted) and named.mcp is not None
        is_here = any(getattr(named, tool) and getattr(own, tool) for tool in _CALLED_BY_RUN)
        if is_known and not is_here:
            missing.append(MissingName(name))
    return missing


def missing_agents(agent: AgentDefinition, known: Collection[str] | None) -> list[MissingName]:
    """Return the names in `agents` of agents that are not there; nothing is missing if `known` is None."""
    if known is None:
        return []
    return [MissingName(name, nearest(name, known)) for name in agent.agents if name not in known]


def missing_sentence(key: str, missing: Sequence[MissingName]) -> str | None:
    """Return a sentence on names under a key that nothing here has, at most ten; None if there are none."""
    if not missing:
        return None
    return f"{key} names what is not here, and the agent runs without: {_named(missing)}."


def _named(missing: Sequence[MissingName]) -> str:
    more = f", and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return ", ".join(name.shown for name in missing[:_MOST_NAMED]) + more


def tool_refusals(agent: AgentDefinition) -> Iterator[tuple[str, str]]:
    """Yield why a run cannot have the tools that its agent's file asks for: the key, and a sentence.

    A misspelt name in `disallowedTools` leaves a tool that its author meant to guard, and so does any name in
    `ask` for which nobody can be asked.
    """
    if not agent.is_built_in:
        return
    for key, selection in (
        ("tools", select(agent.tools, [])),
        ("disallowedTools", select([], agent.disallowed_tools)),
        ("ask", select([], agent.ask)),
    ):
        if selection.restricted:
            named = ", ".join(name[:80] for name in selection.restricted[:_MOST_NAMED])
            yield (
                key,
                f"{key}: {named} asks for a restriction that the built-in loop cannot keep: name the tool "
                "without the part in parentheses, leave it out, or choose `runner: claude`, which keeps it.",
            )
    # A tool that is taken away and was never here needs no warning, unless another tool was meant.
    taken_away = [name for name in missing_guarded(agent, agent.disallowed_tools) if name.nearest]
    for key, missing in (("disallowedTools", taken_away), ("ask", _not_askable(agent))):
        if missing:
            message = f"{key} names what is not here: {_named(missing)}"
            yield key, f"{message}. Name a tool that is here, or leave it out."
    if problem := web_selection(agent).problem:
        yield "tools", problem


def _bare(name: str) -> str:
    return name.partition("(")[0].strip().lower()


def _missing(name: str) -> MissingName:
    plain = _bare(name)
    if plain in _ELSEWHERE:
        return MissingName(name, _ELSEWHERE[plain])
    return MissingName(name, _OF_OTHERS.get(plain) or _nearest_tool(plain))


@lru_cache(maxsize=1_000)
def _nearest_tool(plain: str) -> str | None:
    by_name = {known.lower(): known for known in NAMES}
    near = nearest(plain, by_name)
    return near and by_name[near]


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_*-" else "_" for c in name[:_LONGEST_TOOL].lower())
