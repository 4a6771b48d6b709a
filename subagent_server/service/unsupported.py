"""The keys of a definition unsupported by this version or this machine.

Such an agent loads with a warning, and its run is refused with `config` naming the field: an agent never runs
without something that its author asked for (SPEC section 3).
"""

from collections.abc import Callable

from subagent_server.domain.definitions import BUILT_RUNNERS, AgentDefinition
from subagent_server.service.tool_names import tool_refusals

_NOT_BUILT: dict[str, Callable[[AgentDefinition], bool]] = {
    "runner": lambda agent: agent.runner not in BUILT_RUNNERS,
    "codeMode": lambda agent: agent.code_mode is not None and agent.code_mode.enabled,
    "isolation": lambda agent: agent.isolation != "none",
    "command": lambda agent: agent.command is not None,
}


def unsupported_fields(agent: AgentDefinition) -> list[str]:
    """Return the fields asking for something unsupported, in the order of the table."""
    return [name for name, asks in _NOT_BUILT.items() if asks(agent)]


def refusals(agent: AgentDefinition) -> list[str]:
    """Return why a run of this agent is refused, a sentence each; empty if it may run."""
    missing = [
        f"{name} is not supported by this version: remove it from the agent file to run without it."
        for name in unsupported_fields(agent)
    ]
    return [*agent.faults, *missing, *tool_refusals(agent)]
