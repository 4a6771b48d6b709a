"""The ready scorers, and the figures of repeated trials."""

from decimal import Decimal

import pytest

from subagent_server.extensions.evals.report import Sums, as_wire, table_against
from subagent_server.extensions.evals.scorers import pass_at, passes, standard_error
from subagent_server.extensions.evals.trials import TrialResult


@pytest.mark.parametrize(
    ("scorer", "text", "targets", "tolerance", "passed"),
    [
        ("match", "So it is:  **Paris**.", ["paris"], "0", True),
        ("match", "Comparis", ["paris"], "0", False),
        ("match", "Paris it is", ["paris"], "0", False),
        ("match", "It is Lyon", ["Paris", "lyon"], "0", True),
        ("includes", "It is PARIS\nnow", ["paris now"], "0", True),
        ("includes", "It is Rome", ["paris"], "0", False),
        ("choice", "A or C?\nANSWER: B", ["b"], "0", True),
        ("choice", "The answer is: A, C", ["ca"], "0", True),
        ("choice", "b) because", ["B"], "0", True),
        ("choice", "ANSWER: B\nANSWER: A", ["B"], "0", False),
        ("choice", "\n" * 100_000, ["B"], "0", False),
        ("number", "From 12 to $1,234.56.", ["1234.5"], "0.1", True),
        ("number", "1,235 or 7", ["1235"], "0", False),
        ("number", "x = \u22127", ["-7"], "0", True),
        ("number", "On 2026-11-28.", ["28"], "0", True),
        ("number", "see line12", ["12"], "0", True),
        ("number", "-.5e1 - so", ["-5"], "0", True),
        ("number", "no figure", ["7"], "0", False),
    ],
)
def test_a_scorer_passes_what_was_wanted(
    scorer: str, text: str, targets: list[str], tolerance: str, passed: bool
) -> None:
    assert passes(scorer, text, targets, Decimal(tolerance)) is passed


def test_repetitions_give_a_rate_its_error_and_pass_at_k() -> None:
    assert pass_at(4, 1, 1) == 0.25 and pass_at(4, 1, 4) == 1.0 and pass_at(5, 0, 3) == 0.0
    assert round(pass_at(10, 3, 5), 4) == 0.9167
    assert standard_error([1, 0, 1, 0]) == pytest.approx(0.2887, abs=1e-4) and standard_error([1]) is None
    trials = [_trial(number, passed=number != 2) for number in range(1, 5)]
    wire = Sums(trials).to_wire()
    assert (wire["passed"], wire["trials"], wire["passRate"]) == (3, 4, 0.75)
    assert wire["passAt"] == {"1": 0.75, "2": 1.0, "4": 1.0}
    assert "passAt" not in as_wire([*trials, _trial(1, case="two", passed=True)])


def test_two_evaluations_stand_side_by_side_also_where_one_lacks_a_case() -> None:
    now = [_trial(1, passed=True), _trial(1, case="new", passed=True), _trial(2, case="new", begun=False)]
    table = table_against(now, [_trial(1, passed=False), _trial(1, case="old", passed=True)])
    cells = {line.split()[0]: line.split()[2:] for line in table.splitlines()[1:]}
    assert cells["one"] == ["-", "1/1", "0/1", "+100%"]
    assert cells["new"] == ["-", "1/1", "-"] and cells["old"] == ["-", "-", "1/1"]
    assert table.splitlines()[-1].split() == ["all", "2/2", "1/2"], "other cases"
    table = table_against(now[:1], [_trial(1, passed=False)])
    assert table.splitlines()[-1].split() == ["all", "1/1", "0/1", "+100%"]


def test_a_sum_of_costs_says_so_if_a_trial_does_not_tell_its_own() -> None:
    told = [_trial(number, passed=True, cost=Decimal("0.5")) for number in (1, 2)]
    assert Sums(told).at_least == Sums([_trial(1)]).at_least == ()
    untold = Sums([*told, _trial(3, passed=True), _trial(4, begun=False)])
    assert untold.cost == 1 and untold.to_wire()["atLeast"] == ["costUsd"]
    assert untold.cells()[2] == "≥$1"


def _trial(
    number: int,
    *,
    case: str = "one",
    passed: bool = False,
    begun: bool = True,
    cost: Decimal | None = None,
) -> TrialResult:
    if not begun:
        return TrialResult(case=case, agent="worker", number=number, not_begun=True)
    return TrialResult(case=case, agent="worker", number=number, run_id="r", passed=passed, cost_usd=cost)
