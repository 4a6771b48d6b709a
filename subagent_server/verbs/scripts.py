"""Runs whose model is a script, and the figures by which runs are compared.

Tested in `tests/cli/test_compare.py` and `tests/cli/test_scripted_runs.py`.
"""

import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from subagent_server.run import durable
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, SubagentError
from subagent_server.run.journal import recorded_usage
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import Failure, Money, Record
from subagent_server.run.states import Status
from subagent_server.verbs.reconcile import Observed, tree_usage
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import elapsed_seconds

_OWN = ("turns", "toolCalls")
"""Figures that are those of the run alone."""
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_MOST_NAMES = 200
_NAME_CHARACTERS = 200


class RunTotals(Record):
    """The known figures of a run; tokens and cost are those of its tree, turns and tools its own.

    `model` is None if the journal names no model, a figure if it is unknown.
    `at_least` names the sums of which a part is not known. `result` is the text, or the structured value, of
    a run that has one.
    """

    run_id: str
    agent: str
    label: str | None = None
    status: Status
    model: str | None = None
    scripted: bool | None = None
    seconds: float
    turns: int | None = None
    tool_calls: int | None = None
    tools: dict[str, int] = Field(default_factory=dict)
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Money | None = None
    at_least: tuple[str, ...] | None = None
    error: Failure | None = None
    result: Any = None

    def to_wire(self) -> dict[str, Any]:
        """Return it for `--json`, without the fields that are not known."""
        return self.model_dump(mode="json", exclude_none=True)


def run_totals(service: Service, observed: Observed) -> RunTotals:
    """Return the figures of a run, those so far if it has not ended.

    Raises:
        UnreadableMeta: its result cannot be read.
    """
    meta, run = observed.meta, service.store.paths.run(observed.meta.run_id)
    own = meta.usage if meta.ended_at is not None else meta.usage.merged(recorded_usage(run))
    tree = tree_usage(service.store, meta) if service.store.children_of(meta.run_id) else own
    model, tools = _from_journal(run)
    tokens: dict[str, int | None] = {name: getattr(tree, name) for name in _TOKENS}
    result = service.store.read_result(meta.run_id) if meta.ended_at is not None else None
    scripted = None
    with suppress(SubagentError):
        scripted = service.store.read_request(meta.run_id).scripted
    return RunTotals(
        run_id=meta.run_id,
        agent=meta.agent_name,
        label=meta.label,
        status=meta.status,
        model=model,
        scripted=scripted,
        seconds=elapsed_seconds(meta.started_at or meta.created_at, meta.ended_at),
        turns=own.turns,
        tool_calls=own.tool_calls,
        tools=tools,
        **(tokens if any(tokens.values()) else {}),
        cost_usd=tree.cost_usd,
        at_least=tuple(name for name in tree.at_least if name not in _OWN) or None,
        error=meta.error,
        result=None if result is None else (result.output if result.has_output else result.text or None),
    )


def _from_journal(run: RunPaths) -> tuple[str | None, dict[str, int]]:
    """Return the model, and how often each tool was called; a journal is data, so names are bounded."""
    model: str | None = None
    tools: Counter[str] = Counter()
    for event in durable.records(run.events):
        if event.get("type") == "run_started" and isinstance(event.get("model"), str):
            model = event["model"][:_NAME_CHARACTERS]
        elif event.get("type") == "tool_call":
            tools[str(event.get("toolName"))[:_NAME_CHARACTERS]] += 1
    return model, dict(tools.most_common(_MOST_NAMES))


# -- Runs whose model is a script: played by the worker itself, without a key, and never billed.
#
# The key is the mark. The environment of such a run has a key that this module has made, and no other key
# of the Messages API; so the runs that it starts call the same script, and none can call the real API by
# mistake.
#
# Tested in `tests/cli/test_scripted_runs.py`.


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
    if not agent.is_built_in:
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
            "a script by `--script FILE`, or start a new run."
        )


def calling_script(agent: AgentDefinition) -> AgentDefinition:
    """Return an agent that has no address and no key of its own."""
    env = {name: value for name, value in agent.env.items() if name not in (KEY, ADDRESS, _AUTH_TOKEN)}
    return agent.model_copy(update={"base_url": None, "api_key_env": KEY, "env": env})
