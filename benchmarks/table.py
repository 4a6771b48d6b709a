"""One table for every benchmark: each line with a baseline of the same run, with its bar and a verdict."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Figure = Literal["p50", "p95", "p99", "ratio", "p99 ratio", "worst"]

_HEADER = (
    "| what | n | p50 | p99 | unit | baseline | p50 | ratio | bar | |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Bar:
    """How good a line has to be: one of its figures, at most this (with `at_least`: at least)."""

    figure: Figure
    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.figure} {'≥' if self.at_least else '≤'} {self.limit:g}"

    def is_met(self, line: "Line") -> bool:
        """Whether a line is so good."""
        value = {
            "p50": line.p50,
            "p95": _percentile(line.taken, 95),
            "p99": line.p99,
            "ratio": line.ratio,
            "p99 ratio": line.p99_ratio,
            "worst": max(line.taken),
        }[self.figure]
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Line:
    """What was measured, in `unit`, and the same of a named baseline; `because`: why it misses a bar."""

    what: str
    taken: Sequence[float]
    baseline: str
    floor: Sequence[float]
    bars: tuple[Bar, ...] = ()
    unit: str = "ms"
    because: str = ""

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.taken)

    @property
    def p99(self) -> float:
        """The 99th percentile; of few values it is about the worst."""
        return _percentile(self.taken, 99)

    @property
    def ratio(self) -> float:
        """The median, as a multiple of the baseline's."""
        return self.p50 / max(statistics.median(self.floor), 1e-9)

    @property
    def p99_ratio(self) -> float:
        """The 99th percentile, as a multiple of the baseline's."""
        return self.p99 / max(_percentile(self.floor, 99), 1e-9)

    @property
    def missed(self) -> list[Bar]:
        """The bars that it misses."""
        return [bar for bar in self.bars if not bar.is_met(self)]

    @property
    def verdict(self) -> str:
        """The verdict in a few words: met, or missed with the reason."""
        if not self.bars:
            return ""
        if not self.missed:
            return "met"
        said = f"**missed**: {', '.join(map(str, self.missed))}"
        return f"{said} ({self.because})" if self.because else said

    def __str__(self) -> str:
        floor = f"{self.baseline} | {_number(statistics.median(self.floor))} | {self.ratio:.2f}"
        bars = ", ".join(map(str, self.bars)) or "-"
        figures = f"{len(self.taken)} | {_number(self.p50)} | {_number(self.p99)} | {self.unit}"
        return f"| {self.what} | {figures} | {floor} | {bars} | {self.verdict} |"


def table(lines: Sequence[Line]) -> str:
    """Return lines as a Markdown table."""
    return "\n".join([*_HEADER, *map(str, lines)])


def _percentile(taken: Sequence[float], number: int) -> float:
    return taken[0] if len(taken) < 2 else statistics.quantiles(taken, n=100, method="inclusive")[number - 1]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
