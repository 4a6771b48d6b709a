"""`make bench` fails, and says why, if a benchmark is missing or raises, or if a bar is missed."""

from importlib import import_module

import pytest

from benchmarks.__main__ import MODULES, Part, is_met, main, measured, summary
from benchmarks.scale import Scale
from benchmarks.table import Bar, Line

MET = Line("a call", [1.0], "a bare call", [1.0], (Bar("p50", 2),))
MISSED = Line("another call", [3.0], "a bare call", [1.0], (Bar("p50", 2),), because="it is slow")
UNKNOWN = Line("memory", [float("nan")], "the zygote", [1.0], (Bar("p50", 21),), "MiB")


def test_all_bars_met_is_the_only_success() -> None:
    parts = [Part("Calls", [MET])]
    assert is_met(parts) and summary(parts) == "Every bar is met."


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Part("Calls", [MET, MISSED]), "another call: **missed**: p50 ≤ 2 (it is slow)"),
        (Part("Memory", [UNKNOWN]), "memory: **missed**"),
        (Part("Starts", fault="OSError: no room"), "Starts: **not measured**: OSError: no room"),
    ],
)
def test_a_missed_bar_or_a_fault_is_a_failure_that_the_summary_names(part: Part, said: str) -> None:
    parts = [Part("Calls", [MET]), part]
    assert not is_met(parts)
    assert said in summary(parts) and "Every bar is met." not in summary(parts)


def test_a_missing_module_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Scale(1), ["no_such_benchmark"]) == 1
    said = capsys.readouterr().out
    assert "no_such_benchmark: **not measured**: there is no module" in said
    assert "Every bar is met." not in said


def test_a_benchmark_that_raises_is_named_with_its_error() -> None:
    part = measured("bare_server", Scale(1))
    assert "AttributeError" in part.fault


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_of_the_list_is_there(name: str) -> None:
    module = import_module(f"benchmarks.{name}")
    assert module.TITLE and callable(module.measure)
