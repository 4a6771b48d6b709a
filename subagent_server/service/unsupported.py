"""The keys of a definition that only a box of the sandbox can keep."""

import re
from collections.abc import Mapping
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.sandbox.bubblewrap import find_program
from subagent_server.sandbox.refusal import BoxRefused


def asked_of_box(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys that only a box of the sandbox can keep, as they are written."""
    asked = {
        "sandbox": "sandbox: bwrap" if agent.sandbox == "bwrap" else "",
        "network": "" if agent.network else "network: false",
        "sandboxLimits": "" if agent.sandbox_limits is None else "sandboxLimits",
    }
    return {key: written for key, written in asked.items() if written}


def asked_by_servers(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys of MCP servers that only a box can keep, each with the name of its server."""
    return {
        f"mcpServers.{name}.{'sandbox' if server.sandbox else 'network'}": name
        for name, server in agent.mcp_servers.items()
        if server.insists_on_box
    }


def works_without_box(agent: AgentDefinition) -> bool:
    """Whether the file of an agent leaves its programs without a box."""
    return agent.sandbox == "none" or (agent.runner != "messages" and agent.sandbox == "auto")


def why_no_commit(agent: AgentDefinition) -> str | None:
    """Return a sentence for an agent whose prompt speaks of commits that its runs cannot make, or None."""
    has_shell = agent.runner == "messages" and agent.selection.bash
    can_commit = agent.sandbox == "none" or agent.isolation == "worktree" or not has_shell
    if can_commit or re.search(r"\bcommit(s|ted|ting)?\b", agent.system_prompt, re.IGNORECASE) is None:
        return None
    return (
        "Its prompt speaks of commits, and .git is read-only in the sandbox: `isolation: worktree` gives its "
        "runs a branch of their own; `sandbox: none` lets them write the repository."
    )


def why_no_box(agent: AgentDefinition, environment: Mapping[str, str], cwd: Path) -> str | None:
    """Return why the programs of a run surely have no box, as a part of a sentence, or None.

    That a box works shows only when the run enters it.
    """
    if agent.sandbox == "none":
        return "the agent file says `sandbox: none`"
    if works_without_box(agent):
        return f"the runner {agent.runner} works without a sandbox, unless the file says `sandbox: bwrap`"
    selection = agent.selection
    programs = selection.bash or agent.enabled_code_mode is not None or agent.runner != "messages"
    if not (programs or selection.grep or selection.glob or selection.ls):
        return None  # no program is started
    try:
        find_program(environment, cwd)
    except BoxRefused as refusal:
        return refusal.reason
    return None
