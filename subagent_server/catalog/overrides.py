"""Keys of an agent file that a caller gives for one run, checked as the file's own are."""

from collections.abc import Mapping
from pathlib import Path

from subagent_server.catalog.fields import Origin, read_definition
from subagent_server.catalog.problems import Notes
from subagent_server.catalog.values import Block, Plain, is_null
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument

OVERRIDES = ("model", "effort", "maxTurns", "timeoutSeconds", "budgetUsd")
"""The keys that a caller may give: none of them starts a program or sends a key elsewhere."""


def overridden(agent: AgentDefinition, given: Mapping[str, str]) -> tuple[AgentDefinition, list[str]]:
    """Return the agent with the values of `given` in place of those of its file, and warnings about them.

    Raises:
        BadArgument: a key may not be given, or its value is wrong.
    """
    if not given:
        return agent, []
    if unknown := sorted(set(given) - set(OVERRIDES)):
        raise BadArgument(f"{unknown[0]} cannot be given for one run: only {', '.join(OVERRIDES)} can.")
    if empty := [key for key, value in given.items() if is_null(Plain(value.strip()))]:
        raise BadArgument(f"{empty[0]} is empty: give a value, or leave it out.")
    found, notes = _read(agent.runner, given)
    if faults := notes.reasons("fault"):
        raise BadArgument(f"{'; '.join(faults)}: give another value.")
    changes: dict[str, object] = {name: getattr(found, name) for name in ("model", "effort") if name in given}
    limits = {name: getattr(found.limits, name) for name in found.limits.model_fields_set}
    changes["limits"] = agent.limits.model_copy(update=limits)
    warnings = [f"{warning}." for warning in notes.reasons("warning") if warning.startswith("model ")]
    return agent.model_copy(update=changes), warnings


def fault_of(key: str, value: str) -> str | None:
    """Return what is wrong with the value of a key, as words that go after its name, or None."""
    if is_null(Plain(value.strip())):
        return "is empty"
    _, notes = _read("messages", {key: value})
    faults = notes.reasons("fault")
    return faults[0].partition(" ")[2] if faults else None


def _read(runner: str, given: Mapping[str, str]) -> tuple[AgentDefinition, Notes]:
    block, notes = Block(), Notes()
    for line, (key, value) in enumerate({"runner": runner, **given}.items(), start=1):
        block.put(key, Plain(value), line)
    return read_definition(block, Origin(Path(), "override"), notes), notes
