"""The keys of a definition unsupported by this version or this machine.

Such an agent loads with a warning, and its run is refused with `config` naming the field: an agent never runs
without something that its author asked for (SPEC section 3).
"""

from collections.abc import Callable

from subagent_server.domain.definitions import BUILT_RUNNERS, AgentDefinition
from subagent_server.domain.errors import shorten

_NOT_BUILT: dict[str, Callable[[AgentDefinition], str | None]] = {
    "runner": lambda agent: agent.runner if agent.runner not in BUILT_RUNNERS else None,
    "codeMode": lambda agent: "enabled" if agent.code_mode is not None and agent.code_mode.enabled else None,
    "isolation": lambda agent: agent.isolation if agent.isolation != "none" else None,
    "command": lambda agent: (
        shorten(agent.command) if agent.command and agent.runner in BUILT_RUNNERS else None
    ),
}
"""By key: its value if that is unsupported."""


def unsupported_keys(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys asking for something unsupported, in the order of the table, each with a sentence."""
    remedy = "remove it from the agent file to run without it"
    found = {key: value_of(agent) for key, value_of in _NOT_BUILT.items()}
    return {
        key: f"{key}: {value} is not supported by this version: {remedy}."
        for key, value in found.items()
        if value is not None
    }
