"""The names of models: the aliases of agent files (`sonnet`, `opus`, ...), and the ids that the API knows."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import shorten

_SONNET = "claude-sonnet-5-5"

_MOST_COMPARED = 60
_LEAST_LIKENESS = 0.75

DEFAULT_MODEL = _SONNET
"""The model of an agent that names none, or says `inherit`: a run has no session to inherit one from."""

ALIASES: Mapping[str, str] = {
    "sonnet": _SONNET,
    "opus": "claude-opus-5-5",
    "haiku": "claude-haiku-5-5",
    "fable": "claude-fable-5-2",
    "mythos": "claude-mythos-5-2",
    "inherit": DEFAULT_MODEL,
    "default": DEFAULT_MODEL,
}


def resolve_model(name: str | None) -> str:
    """Return the model id for `name`; a name that is not an alias is an id and stays unchanged.

    Case does not matter to an alias. The long-context mark of agent files in the wild (`sonnet[1m]`) and a
    provider before the id (`anthropic/claude-...`) are dropped: the API knows neither. A title such as
    `Claude Sonnet 4.5` becomes its id.
    """
    text = (name or "").strip()
    bare = text.removeprefix("anthropic/").removesuffix("[1m]")
    title = bare.partition(" (")[0].lower()  # `Claude Sonnet 4.5 (copilot)`
    model = re.sub(r"[ .]+", "-", title) if title.startswith("claude ") else bare
    return ALIASES.get(bare.lower(), model) or DEFAULT_MODEL


def misspelt_alias(name: str | None) -> str | None:
    """Return the alias that was probably meant by a name that is neither an alias nor the id of a Claude."""
    model = resolve_model(name).lower()
    if "claude" in model:
        return None
    near = get_close_matches(model[:_MOST_COMPARED], ALIASES, 1, _LEAST_LIKENESS)
    return near[0] if near else None


def has_known_price(name: str | None) -> bool:
    """Whether the list prices know the model, so that a budget can be kept."""
    # Imported here: only an agent with a budget pays for it.
    from genai_prices.data_snapshot import get_snapshot

    try:
        get_snapshot().find_provider_model(resolve_model(name), None, "anthropic", None)
    except LookupError:
        return False
    return True


def unknown_model(agent: AgentDefinition) -> str | None:
    """Return a sentence on a model that the API surely has not; at another address it may be there."""
    is_elsewhere = agent.runner != "messages" or agent.base_url
    for model in map(resolve_model, () if is_elsewhere else (agent.model, *agent.other_models)):
        if "claude" not in model.lower() and not misspelt_alias(model):
            why = f"model {shorten(model)} is no known model of the Messages API, and it has no known price"
            return (
                f"{why}: name one such as sonnet, give the `baseUrl` that has it, or choose another `runner`."
            )
    return None
