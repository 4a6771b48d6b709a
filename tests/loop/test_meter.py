"""What a run costs, by list prices and every kind of token, and the budget that ends it (SPEC section 3)."""

from decimal import Decimal

import pytest

from subagent_server.loop.model import UsageMeter, find_prices
from subagent_server.run.records import Usage
from tests.helpers.turns import Turn, calls, says, use
from tests.loop.scripted_run import Played, ScriptedTool, echo

ECHO = ScriptedTool("echo", echo)
SONNET = "claude-sonnet-4-5"
USAGE = {
    "input_tokens": 1_000,
    "output_tokens": 100,
    "cache_read_input_tokens": 10_000,
    "cache_creation_input_tokens": 2_000,
}


def meter() -> UsageMeter:
    """Return a meter with the prices of a model whose prices will not change any more."""
    prices = find_prices(SONNET)
    assert prices is not None
    return UsageMeter(prices)


def test_every_kind_of_token_has_its_price_an_hour_of_cache_another_than_five_minutes() -> None:
    prices = find_prices(SONNET)
    assert prices is not None and prices.context_window == 200_000
    per_token = {
        "in": "0.000003",
        "out": "0.000015",
        "read": "0.0000003",
        "5m": "0.00000375",
        "1h": "0.000006",
    }
    price = {kind: Decimal(text) for kind, text in per_token.items()}
    plain = 1_000 * price["in"] + 100 * price["out"] + 10_000 * price["read"]
    assert prices.cost(USAGE) == plain + 2_000 * price["5m"]
    assert prices.cost(USAGE | {"ephemeral_1h_input_tokens": 500}) == (
        plain + 1_500 * price["5m"] + 500 * price["1h"]
    )
    assert prices.cost({}) == 0


@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "claude-opus-5-5", "claude-haiku-5-5"])
def test_the_models_behind_our_aliases_have_prices(model: str) -> None:
    prices = find_prices(model)
    assert prices is not None and prices.cost(USAGE) > 0


@pytest.mark.parametrize("model", ["claude-test", "gpt-4o", "", "../x"])
def test_a_model_that_the_list_does_not_know_has_no_prices(model: str) -> None:
    assert find_prices(model) is None


def test_the_journal_has_the_cost_after_each_turn_as_a_decimal_text() -> None:
    turns: list[Turn] = [calls(use("echo"), usage=USAGE), says("Done.", usage=USAGE)]
    played = Played(*turns, tools=[ECHO], meter=meter())
    first, second = (usage["costUsd"] for usage in played.run.recorded("usage"))
    assert Decimal(second) == 2 * Decimal(first) == played.loop.usage.cost_usd
    assert isinstance(first, str) and first == "0.015"


def test_a_turn_whose_tokens_are_not_named_makes_the_cost_a_least_one() -> None:
    counted = meter()
    for used, least in ((USAGE, ()), (USAGE, ()), ({}, ("costUsd",)), (USAGE, ("costUsd",))):
        counted.charge(used)
        counted.count_turn(0)
        assert counted.usage.at_least == least and counted.usage.cost_usd is not None
    assert counted.turns == 4 and counted.usage.cost_usd == Decimal("0.045")


def test_without_prices_the_cost_is_unknown() -> None:
    played = Played(says("Done.", usage=USAGE))
    assert "costUsd" not in played.run.recorded("usage")[0]
    assert played.loop.usage == Usage(
        input_tokens=1_000, output_tokens=100, cache_read_tokens=10_000, cache_write_tokens=2_000, turns=1
    )


def test_a_budget_that_is_used_up_ends_the_run_before_the_next_call_with_its_text_and_answer_kept() -> None:
    turn = calls(use("echo"), text="Still at it.", usage=USAGE)
    played = Played(
        turn, script={"after": "repeat_last"}, tools=[ECHO], meter=meter(), budget_usd=Decimal("0.03")
    )
    assert played.failure.code == "budget"
    assert len(played.bodies) == 2 and played.outcome.text == "Still at it."
    assert len(played.run.recorded("tool_result")) == 2, "the tools of the last turn have run"


def test_replies_that_break_off_use_up_a_budget_and_are_in_the_journal() -> None:
    begun = says("So far. " * 20, usage=USAGE, fault={"cut_after": 9, "times": "always"})
    played = Played(begun, meter=meter(), budget_usd=Decimal("0.01"))
    assert played.failure.code == "budget" and len(played.bodies) < 10
    (*_, last) = played.run.recorded("usage")
    assert last["costUsd"] == str(played.loop.usage.cost_usd)


def test_a_result_that_came_with_the_last_cent_counts_and_a_budget_of_nothing_calls_no_model() -> None:
    rich = Played(says("Done.", usage=USAGE), meter=meter(), budget_usd=Decimal("0.001"))
    assert rich.outcome.failure is None and rich.outcome.text == "Done."
    poor = Played(says("Never said."), budget_usd=Decimal(0))
    assert poor.failure.code == "budget" and not poor.bodies
