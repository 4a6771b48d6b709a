"""The hooks of the user: commands that are started at questions and ends of runs (SPEC section 11).

They are read from the user's configuration where a first run is started (`service/hooks.py`) and travel in
memory down its tree, with an environment of their own. So neither an agent file nor a run decides what is
executed. Standard library only: the shim imports this module.
"""

import json
from collections.abc import Mapping
from typing import Any

from subagent_server.domain.command_input import command_environment, command_stdin
from subagent_server.host.bounded_command import start
from subagent_server.host.stderr import log
from subagent_server.store.paths import STATE_BYTES, RunPaths

VARIABLE = "SUBAGENT_HOOKS"
"""In the environment of a worker: the commands and their environment, as JSON."""
HOOK_SECONDS = 30.0
_FACTS = ("runId", "label", "status", "summary")


def fire(hooks: str | None, event: str, facts: Mapping[str, Any]) -> None:
    """Start the command of an event, if there is one, and do not wait for it.

    What it prints goes to stderr, which is `worker.out` of the run. It holds up and fails nothing.
    """
    try:
        kept = json.loads(hooks or "{}")
        command, environment = kept.get(event), kept.get("environment", {})
    except (ValueError, AttributeError):
        return  # a process of the run has put something else there
    if not isinstance(command, list) or not command:
        return
    told = command_environment(environment, event, facts)
    try:
        # It outlives this process, within its bound.
        start(command, HOOK_SECONDS, told, command_stdin(event, facts), with_starter=False, stdout=2)
    except (OSError, ValueError, TypeError) as error:
        log(f"The hook {event} could not be started: {error}")


def fire_end(hooks: str | None, run: RunPaths) -> None:
    """Tell of the end of a run, as its state has it; a state without an end tells nothing."""
    if not hooks:
        return
    try:
        state = json.loads(run.meta.read(STATE_BYTES))
        facts = {name: state[name] for name in _FACTS if state.get(name) is not None}
        facts["agent"] = state.get("agentName")
        if isinstance(error := state.get("error"), dict):
            facts["error"] = error.get("message")
    except (OSError, ValueError, AttributeError):
        return
    if state.get("completedAt") or state.get("stoppedAt"):
        fire(hooks, "onEnd", facts)
