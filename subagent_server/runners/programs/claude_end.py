"""How a run of Claude Code ended, by the whole of its last event: its word `success` alone means nothing."""

from collections.abc import Collection
from typing import Any

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.records import Failure
from subagent_server.runners.outcome import Outcome
from subagent_server.runners.programs.dialect import about_login
from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.fields import items_in, text_in

_LIMITS = {
    "error_max_turns": ("max_turns", "Claude Code used all of its turns.", "Raise `maxTurns`."),
    "error_max_budget_usd": ("budget", "Claude Code used all of its budget.", "Raise `budgetUsd`."),
    "error_max_structured_output_retries": (
        *("invalid_output", "Claude Code gave no output that fits `outputSchema`."),
        "Say in its prompt which form the result has.",
    ),
}
_LOGIN = "If it is not logged in: start `claude` once and log in, or set ANTHROPIC_API_KEY."


def judged_end(
    event: dict[str, Any], agent: AgentDefinition, asked: Collection[str], events: ProgramEvents
) -> Outcome:
    """Return the outcome by the event `result`. `asked` are the calls whose permission was asked for here."""
    text = text_in(event, "result") or events.text
    if (failure := _failure(event, text, agent)) is not None:
        return Outcome(events.text or text, failure=failure)
    silent = [denial for denial in items_in(event, "permission_denials") if _is_silent(denial, asked)]
    unasked = sorted({text_in(denial, "tool_name")[:200] for denial in silent} - _forbidden(agent))
    if unasked:
        message = f"Claude Code was denied {', '.join(unasked)}, and nobody was asked."
        hint = (
            "Allow it by `tools`, forbid it by `disallowedTools`, or word the task so that it is not needed."
        )
        return Outcome(text, failure=Failure(code="agent_error", message=message, hint=hint))
    if agent.output_schema is not None:
        output = event.get("structured_output")
        if output is None:
            code, message, hint = _LIMITS["error_max_structured_output_retries"]
            return Outcome(text, failure=Failure(code=code, message=message, hint=hint))
        return Outcome(text, output=output, has_output=True)
    if not text.strip():
        hint = "Look at run.log."
        return Outcome("", failure=Failure(code="agent_error", message="It ended without a word.", hint=hint))
    return Outcome(text)


def _failure(event: dict[str, Any], text: str, agent: AgentDefinition) -> Failure | None:
    subtype, reason = text_in(event, "subtype"), text_in(event, "terminal_reason")
    if subtype in _LIMITS:
        code, message, hint = _LIMITS[subtype]
        return Failure(code=code, message=message, hint=hint)
    is_fine = subtype == "success" and event.get("is_error") is False and reason in ("", "completed")
    if is_fine:
        return None
    told = event.get("errors")
    errors = [error for error in told if isinstance(error, str)] if isinstance(told, list) else []
    said = "; ".join(errors) or text or subtype or "no reason given"
    of_model = reason == "api_error" or "API Error" in said
    return Failure(
        code="model_error" if of_model else "agent_error",
        message=f"Claude Code ended with an error ({reason or subtype}): {said}",
        hint=about_login(agent, _LOGIN),
    )


def _is_silent(denial: dict[str, Any], asked: Collection[str]) -> bool:
    return text_in(denial, "tool_use_id") not in asked


def _forbidden(agent: AgentDefinition) -> set[str]:
    """Return the names of tools that the agent file itself forbids, in whole or in part."""
    return {name.partition("(")[0].strip() for name in agent.disallowed_tools}
