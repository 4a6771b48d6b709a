"""Masking: every door removes the secrets known to its process from all text before writing."""

from collections.abc import Iterable, Mapping

from subagent_server.catalog.hidden import hidden_values
from subagent_server.catalog.variables import MissingVariable, expand_definition
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.secrets import MASK, Masker, collector_secrets, secret_values
from subagent_server.service.context import Service


def masker_of(
    agent: AgentDefinition | None, environment: Mapping[str, str], also: Iterable[str] = ()
) -> Masker:
    """Return the masker of the secrets in `environment`, of those that `agent` holds or names, of `also`."""
    if agent is None:
        return Masker([*secret_values(environment).values(), *collector_secrets(environment), *also])
    masked = [name for name, value in agent.env.items() if MASK in value]  # of a stored definition
    named = secret_values(environment, [agent.api_key_env, *masked])
    return Masker([*named.values(), *collector_secrets(environment), *hidden_values(agent), *also])


def masker_at_door(service: Service, run_id: str) -> Masker:
    """Return the masker of the words that come for run `run_id` from outside its worker.

    The worker knows the secrets of its agent file; here they are found as far as the environment has them.
    """
    environment = service.settings.environment
    try:
        stored = AgentDefinition.model_validate(service.store.read_request(run_id).agent)
    except (SubagentError, ValueError):
        return masker_of(None, environment)  # its request is damaged: the run can be stopped all the same
    return masker_with_variables(stored, environment)


def masker_with_variables(agent: AgentDefinition, environment: Mapping[str, str]) -> Masker:
    """Return the masker of `environment` and of an agent whose variables are not expanded yet."""
    try:
        return masker_of(expand_definition(agent, environment), environment)
    except MissingVariable:
        return masker_of(agent, environment)
