"""The programs that carry out runs: how they are called and installed, and the keys that they cannot keep.

An agent never runs without something that its author asked for, so a key that its program cannot be given is
refused (SPEC section 3).
"""

from collections.abc import Callable
from dataclasses import dataclass

from subagent_server.domain.definitions import AgentDefinition, RunnerName


@dataclass(frozen=True)
class KnownProgram:
    """A program with a runner of its own: its command, how it is installed, and the keys that it keeps.

    `state` is the directory below the home directory in which it keeps its sessions. `oldest` is the version
    with which everything was tried: older ones lack options, or do otherwise in silence.
    """

    command: str
    install: str
    state: str
    keeps: frozenset[str]
    oldest: tuple[int, ...]


KNOWN_PROGRAMS: dict[RunnerName, KnownProgram] = {
    "claude": KnownProgram(
        command="claude",
        install="npm install -g @anthropic-ai/claude-code",
        state=".claude",
        keeps=frozenset(
            {
                *("model", "baseUrl", "apiKeyEnv", "maxTokens", "effort", "tools", "disallowedTools", "ask"),
                *("maxTurns", "budgetUsd", "mcpServers", "permissionMode"),
            }
        ),
        oldest=(2, 1, 330),
    ),
    # its own tools have no list: its sandbox and its approvals bound them
    "codex": KnownProgram(
        "codex",
        "npm install -g @openai/codex",
        ".codex",
        frozenset({"model", "effort", "maxTurns", "mcpServers"}),
        (0, 169, 0),
    ),
    "gemini": KnownProgram(
        "gemini",
        "npm install -g @google/gemini-cli",
        ".gemini",
        frozenset({"model", "tools", "disallowedTools", "maxTurns", "mcpServers"}),
        (0, 61, 0),
    ),
}
"""By the name of their runner. The runner `command` has the program that its agent names."""

_ASKED: dict[str, Callable[[AgentDefinition], bool]] = {
    "model": lambda agent: agent.model not in (None, "inherit", "default"),
    "baseUrl": lambda agent: agent.base_url is not None,
    "apiKeyEnv": lambda agent: agent.api_key_env != AgentDefinition.model_fields["api_key_env"].default,
    "maxTokens": lambda agent: agent.max_tokens is not None,
    "effort": lambda agent: agent.effort is not None,
    "tools": lambda agent: agent.tools is not None,
    "ask": lambda agent: bool(agent.ask),
    "disallowedTools": lambda agent: bool(agent.disallowed_tools),
    "maxTurns": lambda agent: bool({"maxTurns", "limits.maxTurns"} & agent.lines.keys()),
    "budgetUsd": lambda agent: agent.limits.budget_usd is not None,
    "mcpServers": lambda agent: bool(agent.mcp_servers or agent.named_servers),
    "codeMode": lambda agent: agent.enabled_code_mode is not None,
    "webSearch": lambda agent: agent.web_search is not None,
    "webFetch": lambda agent: agent.web_fetch is not None,
    "args": lambda agent: bool(agent.args),
    "permissionMode": lambda agent: agent.permission_mode not in (None, "bypassPermissions"),
}
"""Whether an agent file asks for what not every program can be given, by the key."""

_PLACES = {"model": "{model}", "effort": "{effort}"}
"""The keys that reach any program through a place in its arguments."""


def unkept_keys(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys that the program of an agent cannot keep, each with a sentence."""
    if agent.runner == "messages":
        return {}
    keeps = _kept(agent)
    return {
        key: _sentence(agent, key) for key, is_asked in _ASKED.items() if is_asked(agent) and key not in keeps
    }


def program_of(agent: AgentDefinition) -> str | None:
    """Return the command of the program that carries out the runs of an agent; None for the built-in loop."""
    known = KNOWN_PROGRAMS.get(agent.runner)
    return agent.command or (known.command if known is not None else None)


def installing(agent: AgentDefinition) -> str:
    """Return how the program of an agent comes here, as the end of a sentence."""
    known = KNOWN_PROGRAMS.get(agent.runner)
    return "install it, or mend `command`" if known is None else f"install it with `{known.install}`"


def _kept(agent: AgentDefinition) -> frozenset[str]:
    known = KNOWN_PROGRAMS.get(agent.runner)
    if known is not None:
        return known.keeps
    if agent.runner == "acp":
        return frozenset({"args", "maxTurns", "mcpServers"})
    return frozenset({"args", *(key for key, place in _PLACES.items() if _has_place(agent, place))})


def _has_place(agent: AgentDefinition, place: str) -> bool:
    return any(place in word for word in agent.args)


def _sentence(agent: AgentDefinition, key: str) -> str:
    if agent.runner == "command" and key in _PLACES:
        return f"{key} cannot reach the program: put {_PLACES[key]} into `args`, or leave {key} out."
    return f"{key} cannot be kept by the runner {agent.runner}: leave it out, or choose another runner."
