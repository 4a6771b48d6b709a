"""Long conversations stay inside the window if the API clears old results, else they fail clearly."""

from typing import Any

import pytest

from subagent_server.loop.request import KEPT_USES, can_edit
from tests.helpers.api_checks import StrictApi
from tests.helpers.turns import Turn, calls, says, tool_results, use
from tests.loop.scripted_run import Played, ScriptedTool

WINDOW = 10_000
"""Tokens of the window that is played; each result below has 1,000."""
ABLE = {"model": "claude-sonnet-5-5", "context_window": WINDOW}


@pytest.fixture(autouse=True)
def _window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrictApi, "window", WINDOW)


async def thousand(arguments: dict[str, Any]) -> str:
    """Say something of 1,000 tokens."""
    return f"{arguments['n']}: ".ljust(4000, "x")


TOOL = ScriptedTool("thousand", thousand)
ASK = ScriptedTool("ask_parent", thousand)


def long_run(count: int, *, model: Turn = ABLE) -> Played:
    """Play a run whose results together are far larger than the window."""
    turns = [calls(use("thousand", n=n), text=f"Step {n}.") for n in range(count)]
    return Played(
        calls(use("ask_parent", n=99)),
        *turns,
        says("Done."),
        settings=model,
        tools=[TOOL, ASK],
        max_turns=99,
    )


def test_a_conversation_far_longer_than_the_window_goes_on_and_the_log_has_each_clearing() -> None:
    played = long_run(25)
    assert played.outcome.text == "Done.", played.outcome.failure
    edits = played.run.recorded("context_edited")
    assert (
        edits and edits[-1]["clearedToolUses"] >= 25 - KEPT_USES - 5 and edits[-1]["clearedTokens"] > WINDOW
    )
    assert [fact["clearedToolUses"] for fact in edits] == sorted({fact["clearedToolUses"] for fact in edits})
    assert len(tool_results(played.bodies[-1])[0]) == 4000, "the conversation itself is whole"
    (edit,) = played.bodies[0]["context_management"]["edits"]
    assert edit["trigger"]["value"] < WINDOW and "ask_parent" in edit["exclude_tools"]
    assert played.requests[0].headers["anthropic-beta"] == "context-management-2025-06-27"


@pytest.mark.parametrize("model", [ABLE, {"model": "claude-test"}], ids=["refused", "not asked for"])
def test_if_the_api_has_no_context_edits_the_run_fails_clearly_when_the_window_is_full(
    model: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StrictApi, "edits", False)
    played = long_run(25, model=model)
    assert played.failure.code == "model_error" and "prompt is too long" in played.failure.message
    assert "no longer fits" in (played.failure.hint or "")
    assert played.outcome.text.startswith("Step ") and not played.run.recorded("context_edited")
    warnings = [fact["message"] for fact in played.run.recorded("warning")]
    assert len(warnings) == (1 if model is ABLE else 0)
    assert all("clears no old tool results" in warning for warning in warnings)


def test_another_refusal_does_not_turn_context_edits_off_and_a_short_run_is_not_disturbed() -> None:
    refused = Played(says("x", fault={"status": 400, "message": "max_tokens: too large"}), settings=ABLE)
    assert refused.failure.code == "model_error" and len(refused.bodies) == 1
    short = long_run(2)
    assert short.outcome.text == "Done." and not short.run.recorded("context_edited")


@pytest.mark.parametrize(
    ("model", "able"),
    [
        ("claude-sonnet-5-5", True),
        ("claude-fable-5-2", True),
        ("claude-opus-5", True),
        ("claude-haiku-4-5-20251001", True),
        ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-1", False),
        ("claude-3-7-sonnet-latest", False),
        ("claude-test", False),
        ("gpt-4o", False),
    ],
)
def test_models_from_claude_4_5_on_have_context_management(model: str, able: bool) -> None:
    assert can_edit(model) is able
