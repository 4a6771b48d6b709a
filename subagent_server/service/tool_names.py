"""Find names in an agent's `tools` and `agents` that nothing offers, and conditions that cannot be kept.

`service/check_agent.py` asks for all doors. The view and the log of a run show these sentences.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from subagent_server.domain.definitions import AgentDefinition, tool_name
from subagent_server.domain.errors import shorten
from subagent_server.domain.tool_selection import NAMES, Selection, select
from subagent_server.domain.web_tools import web_offer

_MOST_NAMED = 10
_MOST_COMPARED = 80
_ALWAYS = frozenset({"ask_parent", "askuserquestion", "final_answer", "structuredoutput"})
"""Names that mean what every run has without naming it."""
_STARTS_AGENTS = frozenset(
    {"task", "agent", "check_status", "wait_for_runs", "list_runs", "get_logs", "reply_subagent", "stop_run"}
    | {"continue_run"}
)
"""Names of tools that an agent has which may start others."""
_ELSEWHERE = {
    "bashoutput": "Bash",
    "killbash": "Bash",
    "killshell": "Bash",
    "exitplanmode": None,
    "lsp": None,
    "notebookedit": "Edit",
    "notebookread": "Read",
    "skill": None,
    "slashcommand": None,
    "task": "the key `agents`",
    "agent": "the key `agents`",
}
"""Tools of Claude Code that are not here, and the nearest thing that is."""


@dataclass(frozen=True)
class MissingName:
    """A name in `tools` or `agents` that nothing here has, with the nearest available name or means."""

    name: str
    nearest: str | None = None

    @property
    def told(self) -> str:
        """The name as it is shown."""
        near = f" (nearest: {self.nearest})" if self.nearest else ""
        return f"{shorten(self.name)}{near}"


def missing_tools(agent: AgentDefinition) -> list[MissingName]:
    """Return the names in `tools` that no tool of a run has.

    A name may belong to a tool of an MCP server, whose tools are known only after a run has connected. So a
    name counts as missing only if the agent has no server, or if it is a tool of Claude Code not offered
    here.
    """
    if agent.runner != "messages" or agent.tools is None:
        return []
    selection = select(agent.tools, [])
    servers = [_plain(name) for name in (*agent.mcp_servers, *agent.named_servers)]
    missing = [_missing(name) for name in selection.unknown if not _is_offered(name, agent, bool(servers))]
    for name in selection.mcp or []:
        server = _plain(name).removeprefix("mcp__")
        if (
            not any(server == known or server.startswith(f"{known}__") for known in servers)
            and "*" not in server
        ):
            near = get_close_matches(server.partition("__")[0], servers, 1)
            missing.append(MissingName(name, f"mcp__{near[0]}" if near else None))
    return missing


def missing_agents(agent: AgentDefinition, known: Collection[str] | None) -> list[MissingName]:
    """Return the names in `agents` of agents that are not there; nothing is missing if `known` is None."""
    if known is None:
        return []
    return [MissingName(name, _near_agent(name, known)) for name in agent.agents if name not in known]


def missing_sentence(key: str, missing: Sequence[MissingName]) -> str | None:
    """Return in a sentence what a key names in vain, at most ten names; None if there are none."""
    if not missing:
        return None
    more = f", and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    named = ", ".join(name.told for name in missing[:_MOST_NAMED])
    return f"{key} names what is not here, and the agent runs without: {named}{more}."


def tool_refusals(agent: AgentDefinition) -> list[str]:
    """Return why a run cannot have the tools that its agent's file asks for, a sentence each."""
    if agent.runner != "messages":
        return []
    selection = select(agent.tools, agent.disallowed_tools)
    problem = web_offer(agent, selection).problem
    return [*_restrictions(selection), *([problem] if problem else [])]


def _restrictions(selection: Selection) -> list[str]:
    if not selection.restricted:
        return []
    named = ", ".join(name[:80] for name in selection.restricted[:_MOST_NAMED])
    return [
        f"tools: {named} asks for a restriction that this version cannot keep: name the tool without the "
        "part in parentheses to allow all of it, or leave it out."
    ]


def _is_offered(name: str, agent: AgentDefinition, has_servers: bool) -> bool:
    plain = name.partition("(")[0].strip().lower()
    if plain in _ALWAYS:
        return True
    if agent.agents and (plain in _STARTS_AGENTS or plain in map(tool_name, agent.agents)):
        return True
    return has_servers and plain not in _ELSEWHERE


def _missing(name: str) -> MissingName:
    plain = name.partition("(")[0].strip().lower()
    if plain in _ELSEWHERE:
        return MissingName(name, _ELSEWHERE[plain])
    return MissingName(name, _nearest(plain[:_MOST_COMPARED]))


def _near_agent(name: str, known: Collection[str]) -> str | None:
    near = get_close_matches(name[:_MOST_COMPARED], list(known)[:_MOST_COMPARED], 1)
    return near[0] if near else None


@lru_cache(maxsize=1_000)
def _nearest(plain: str) -> str | None:
    by_name = {known.lower(): known for known in NAMES}
    near = get_close_matches(plain, by_name, 1)
    return by_name[near[0]] if near else None


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_*-" else "_" for c in name.lower())
