"""The trials of an evaluation as a table, as JSON and as JUnit XML."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree

from subagent_server.cli.console.terminal import (
    GAP,
    UNKNOWN,
    cost_text,
    duration,
    line_width,
    one_line,
    run_cell,
    table,
    width_of,
)
from subagent_server.extensions.evals.scorers import pass_at, standard_error
from subagent_server.extensions.evals.trials import TrialResult

_REASON_CHARACTERS = 2_000
_TRIES = (1, 2, 4, 8, 16, 32, 64)
"""The k of pass@k."""
_LEAST_OF_NAMES = 24

Key = tuple[str, str, str]


class Sums:
    """The numbers of some trials. What was not begun counts neither as passed nor as failed."""

    def __init__(self, results: Iterable[TrialResult]) -> None:
        self._results = list(results)
        self.begun = [result for result in self._results if not result.not_begun]
        self.passed = sum(bool(result.passed) for result in self.begun)
        self.skipped = len(self._results) - len(self.begun)
        self.errors = sum(bool(result.error) for result in self.begun)
        self.rates = _rates(self.begun)
        costs = [result.cost_usd for result in self._results if result.cost_usd is not None]
        self.cost = sum(costs, Decimal(0)) if costs else None
        untold = any(result.run_id is not None and result.cost_usd is None for result in self._results)
        lacks = untold or any(result.at_least for result in self._results)
        self.at_least = ("costUsd",) if costs and lacks else ()
        seconds = [result.seconds for result in self._results if result.seconds is not None]
        self.mean_seconds = sum(seconds) / len(seconds) if seconds else None

    @property
    def rate(self) -> float | None:
        """The mean of the rates; None if nothing was begun."""
        return sum(self.rates) / len(self.rates) if self.rates else None

    def to_wire(self) -> dict[str, Any]:
        """Return them for `--json`; unknown numbers, and zeros of rare ones, are left out."""
        spread, trials = standard_error(self.rates), len(self.begun)
        tries = [k for k in _TRIES if k <= trials] if len(_grouped(self.begun)) == 1 else []
        facts = {
            "notBegun": self.skipped or None,
            "errors": self.errors or None,
            "passRate": None if self.rate is None else round(self.rate, 4),
            "standardError": None if spread is None else round(spread, 4),
            "passAt": {str(k): round(pass_at(trials, self.passed, k), 4) for k in tries} or None,
            "costUsd": None if self.cost is None else f"{self.cost:f}",
            "atLeast": [*self.at_least] or None,
            "meanSeconds": None if self.mean_seconds is None else round(self.mean_seconds, 3),
        }
        known = {name: value for name, value in facts.items() if value is not None}
        return {"passed": self.passed, "trials": trials, **known}

    def cells(self) -> tuple[str, str, str, str]:
        """Return the cells of PASS, RATE, COST and TIME."""
        spread = standard_error(self.rates)
        rate = "" if spread is None or self.rate is None else f"{100 * self.rate:.0f}±{100 * spread:.0f}%"
        return self.pass_cell(), rate, cost_text(self.cost, self.at_least), _time(self.mean_seconds)

    def pass_cell(self) -> str:
        """Return how many of how many have passed."""
        return f"{self.passed}/{len(self.begun)}" if self.begun else UNKNOWN


def progress_line(result: TrialResult) -> str:
    """Return a trial that has ended on one line, and the reasons below it if it failed."""
    name = " · ".join(one_line(part) for part in _key(result) if part != UNKNOWN)
    facts = f"{_time(result.seconds)}  {cost_text(result.cost_usd, result.at_least or ())}"
    why = "".join(f"\n  {one_line(problem)}" for problem in result.problems)
    run = f"  {run_cell(result.run_id)}" if result.run_id is not None else ""
    sign = "○" if result.not_begun else "✔" if result.passed else "✘"
    return f"{sign} {name} #{result.number}  {facts}{run}{why}"


def table_of(results: Sequence[TrialResult]) -> str:
    """Return a row for each case, agent and model: how many trials passed, their cost and mean time."""
    rows = {key: Sums(group).cells() for key, group in _grouped(results).items()}
    return _table(("PASS", "RATE", "COST", "TIME"), (7, 9, 9, 8), rows, Sums(results).cells())


def table_against(results: Sequence[TrialResult], before: Sequence[TrialResult]) -> str:
    """Return a row for each case, agent and model of either evaluation: how many passed now, and before.

    All have no change where one lacks a row: other cases pass at other rates.
    """
    now, then = _grouped(results), _grouped(before)
    keys = dict.fromkeys([*now, *then])
    rows = {key: _compared(now.get(key, []), then.get(key, [])) for key in keys}
    *passed, change = _compared(results, before)
    total = (*passed, change if all(cells[-1] for cells in rows.values()) else "")
    return _table(("NOW", "BEFORE", "CHANGE"), (8, 8, 8), rows, total)


def _compared(now: Iterable[TrialResult], before: Iterable[TrialResult]) -> tuple[str, ...]:
    new, old = Sums(now), Sums(before)
    change = "" if new.rate is None or old.rate is None else f"{100 * (new.rate - old.rate):+.0f}%"
    return new.pass_cell(), old.pass_cell(), change


def _table(
    names: Sequence[str], widths: Sequence[int], rows: Mapping[Key, Sequence[str]], total: Sequence[str]
) -> str:
    """Return a table; case, agent and model share what the numbers leave of the line.

    The case, whose name is a sentence, gets what the names of agents and models do not need of it.
    """
    room = max(_LEAST_OF_NAMES, line_width() - sum(widths) - len(GAP) * (len(names) + 2))
    lines: list[tuple[str, ...]] = [("CASE", "AGENT", "MODEL", *names)]
    lines += [(*map(one_line, key), *cells) for key, cells in rows.items()]
    lines.append(("all", "", "", *total))
    agent, model = (min(room * 3 // 10, max(width_of(line[n]) for line in lines)) for n in (1, 2))
    return "\n".join(table(lines, (room - agent - model, agent, model, *widths[:-1])))


def as_wire(results: Sequence[TrialResult], before: Sequence[TrialResult] | None = None) -> dict[str, Any]:
    """Return the same and each trial, for `--json`."""
    then = _grouped(before or ())
    rows = [
        {
            **_names(key),
            **Sums(group).to_wire(),
            **({"before": Sums(then[key]).to_wire()} if key in then else {}),
        }
        for key, group in _grouped(results).items()
    ]
    compared = {} if before is None else {"before": Sums(before).to_wire()}
    runs = [result.to_wire() for result in results]
    return {**Sums(results).to_wire(), **compared, "rows": rows, "runs": runs}


def as_junit(name: str, results: Sequence[TrialResult]) -> str:
    """Return JUnit XML: a suite for the file, a test case for each trial; what was not begun is skipped."""
    sums = Sums(results)
    suite = ElementTree.Element(
        "testsuite",
        name=one_line(name),
        tests=str(len(results)),
        failures=str(len(sums.begun) - sums.passed - sums.errors),
        errors=str(sums.errors),
        skipped=str(sums.skipped),
        time=f"{sum(result.seconds or 0 for result in results):.3f}",
    )
    for result in results:
        # XML has no form for control characters, and ElementTree writes them as they are: no CI reads that.
        case, agent, model = map(one_line, _key(result))
        test = ElementTree.SubElement(
            suite,
            "testcase",
            classname=agent if model == UNKNOWN else f"{agent}.{model}",
            name=f"{case} #{result.number}",
            time=f"{result.seconds or 0:.3f}",
        )
        why = one_line("; ".join(result.problems))[:_REASON_CHARACTERS]
        if result.not_begun:
            ElementTree.SubElement(test, "skipped", message=why)
        elif not result.passed:
            kind = "error" if result.error else "failure"
            ElementTree.SubElement(test, kind, message=why).text = f"run {result.run_id or UNKNOWN}"
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rates(begun: Iterable[TrialResult]) -> list[float]:
    """Return the rates whose mean is the pass rate: of each row, or of each trial where there is one row.

    The trials of one case are no independent ones of many, so rows are the units of a standard error.
    """
    rows = [[bool(result.passed) for result in row] for row in _grouped(begun).values()]
    return [float(passed) for passed in rows[0]] if len(rows) == 1 else [sum(row) / len(row) for row in rows]


def _key(result: TrialResult) -> Key:
    return result.case, result.agent, result.model or UNKNOWN


def _names(key: Key) -> dict[str, str]:
    case, agent, model = key
    return {"case": case, "agent": agent, **({} if model == UNKNOWN else {"model": model})}


def _grouped(results: Iterable[TrialResult]) -> dict[Key, list[TrialResult]]:
    groups: dict[Key, list[TrialResult]] = {}
    for result in results:
        groups.setdefault(_key(result), []).append(result)
    return groups


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration(seconds)
