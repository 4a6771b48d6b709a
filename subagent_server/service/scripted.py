"""Runs whose model is a script: played by the worker itself, without a key, and never billed.

The key is the mark. The environment of such a run has a key that this module has made, and no other key of
the Messages API; so the runs that it starts call the same script, and none can call the real API by mistake.

Tested in `tests/cli/test_scripted_runs.py`.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument
from subagent_server.service.context import Service

KEY, ADDRESS = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
_AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
_MARK = "scripted-model-"
"""The beginning of the key of a scripted model; the real API knows no such keys."""

WARNING = "The model is played by a script, so nothing is billed and no budget is watched."


@dataclass(frozen=True)
class PlayedScript:
    """The script of a model: the name of its file, and its content."""

    name: str
    text: str


def is_scripted(environment: Mapping[str, str]) -> bool:
    """Whether runs with this environment call a scripted model."""
    return environment.get(KEY, "").startswith(_MARK)


def new_key() -> str:
    """Return a key for one scripted model."""
    return f"{_MARK}{secrets.token_urlsafe(24)}"


def scripted_environment(
    environment: Mapping[str, str], key: str, address: str | None = None
) -> dict[str, str]:
    """Return an environment that calls the scripted model of this key, and has no way to another."""
    kept = {name: value for name, value in environment.items() if name not in (KEY, ADDRESS, _AUTH_TOKEN)}
    return {**kept, KEY: key, **({ADDRESS: address} if address is not None else {})}


def scripted_service(service: Service, agent: AgentDefinition, script: PlayedScript | None) -> Service:
    """Return the service that starts this run: with a script, or below a scripted run, a scripted one.

    Raises:
        BadArgument: the agent does not call the Messages API, so no script can play its model.
    """
    environment = service.settings.environment
    if script is not None:
        environment = scripted_environment(environment, new_key())
    elif not is_scripted(environment):
        return service
    if agent.runner != "messages":
        raise BadArgument(
            f"Agent {agent.name} thinks by `runner: {agent.runner}`, and a script plays the Messages API "
            "alone: start it without a script."
        )
    environment = {**environment, agent.api_key_env: environment[KEY]}  # for the check of the agent
    return replace(service, settings=replace(service.settings, environment=environment))


def check_not_scripted(service: Service, run_id: str) -> None:
    """Refuse a run whose model was a script: a run that follows from it would call a real model.

    Raises:
        BadArgument; UnreadableMeta.
    """
    if service.store.read_request(run_id).scripted:
        raise BadArgument(
            f"The model of run {run_id} was a script, and a real model is not called by mistake: give "
            "rerun a script by `--script FILE`, or start a new run."
        )


def calling_script(agent: AgentDefinition) -> AgentDefinition:
    """Return an agent that has no address and no key of its own."""
    env = {name: value for name, value in agent.env.items() if name not in (KEY, ADDRESS, _AUTH_TOKEN)}
    return agent.model_copy(update={"base_url": None, "api_key_env": KEY, "env": env})
