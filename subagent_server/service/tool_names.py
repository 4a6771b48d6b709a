"""The names in an agent's `tools` that nothing offers, and the names with an impossible condition.

All doors ask here before a run: `agents`, `doctor`, the tool's description, and the start. The words of the
start stand in the run's view and log.
"""

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
class MissingTool:
    """A name in `tools` that nothing offers, with the nearest available name or means."""

    name: str
    nearest: str | None = None

    @property
    def told(self) -> str:
        """The name as it is shown."""
        near = f" (nearest: {self.nearest})" if self.nearest else ""
        return f"{shorten(self.name)}{near}"


def missing_tools(agent: AgentDefinition) -> list[MissingTool]:
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
            missing.append(MissingTool(name, f"mcp__{near[0]}" if near else None))
    return missing


def missing_sentence(agent: AgentDefinition) -> str | None:
    """Return in a sentence which tools an agent names in vain, at most ten; None if there are none."""
    missing = missing_tools(agent)
    if not missing:
        return None
    more = f", and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    named = ", ".join(tool.told for tool in missing[:_MOST_NAMED])
    return f"tools names what is not here, and the agent runs without: {named}{more}."


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


def _missing(name: str) -> MissingTool:
    plain = name.partition("(")[0].strip().lower()
    if plain in _ELSEWHERE:
        return MissingTool(name, _ELSEWHERE[plain])
    return MissingTool(name, _nearest(plain[:_MOST_COMPARED]))


@lru_cache(maxsize=1_000)
def _nearest(plain: str) -> str | None:
    by_name = {known.lower(): known for known in NAMES}
    near = get_close_matches(plain, by_name, 1)
    return by_name[near[0]] if near else None


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_*-" else "_" for c in name.lower())
