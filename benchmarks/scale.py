"""How large the benchmarks are: whole by default, smaller to look whether they work."""

from dataclasses import dataclass

WHOLE = 500
MANY = 900


@dataclass(frozen=True)
class Scale:
    """`runs` is how many runs are alive while calls are measured; everything else follows it."""

    runs: int = WHOLE

    @property
    def live(self) -> list[int]:
        """How many runs are alive while calls are measured."""
        return [number for number in (1, 50, 500) if number <= self.runs] or [1]

    @property
    def alive(self) -> int:
        """How many runs live at the same time in the benchmark of many: 900 in a whole run."""
        return MANY if self.runs >= WHOLE else 2 * self.runs

    @property
    def stored(self) -> list[int]:
        """How many runs are stored while lists are measured."""
        return sorted({100, max(200, self.runs * 20), max(400, self.runs * 200)})

    @property
    def log_bytes(self) -> int:
        """How long the log is that is followed."""
        return self.runs * 1_000_000_000 // WHOLE

    @property
    def work_seconds(self) -> float:
        """How long the work takes that a parent delegates."""
        return 10.0 if self.runs >= WHOLE else 3.0

    def times(self, number: int) -> int:
        """Return how often to measure what is measured `number` times in a whole run."""
        return number if self.runs >= WHOLE else max(5, number // 5)
