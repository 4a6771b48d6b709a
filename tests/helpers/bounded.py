"""The command over what is hostile, with so little room that endless work is noticed at once."""

import json
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.forked import PROGRAM, run

HANG_SECONDS = 60
"""When a call is taken for one that never ends, on a machine that has much else to do."""
_MEMORY_BYTES, _FILE_BYTES = 2 << 30, 256 << 20


@dataclass(frozen=True)
class Ended:
    """How a call ended, its output, and how long it took."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        """All of its output."""
        return self.out + self.err

    def json(self) -> Any:
        """Return what it printed as JSON."""
        return json.loads(self.out)

    def __str__(self) -> str:
        return (
            f"subagent {' '.join(self.words)[:200]} ({self.code}, {self.seconds:.1f} s): {self.said[-2000:]}"
        )


def call_bounded(*words: str, environment: Mapping[str, str], cwd: Path) -> Ended:
    """Run the command to its end.

    Raises:
        subprocess.TimeoutExpired: it did not end within `HANG_SECONDS`.
        AssertionError: it died, or showed a traceback.
    """
    began = time.monotonic()
    with little_room():
        done = run([*PROGRAM, *words], environment, cwd=cwd, seconds=HANG_SECONDS)
    said = [text.decode("utf-8", "replace") for text in (done.stdout, done.stderr)]
    ended = Ended(words, done.returncode, said[0], said[1], time.monotonic() - began)
    assert ended.code >= 0, f"died: {ended}"
    assert "Traceback" not in ended.said, str(ended)
    return ended


@contextmanager
def little_room() -> Iterator[None]:
    """Bound the memory and the files of this process, and of those that it starts meanwhile.

    The bound is a multiple: a zygote forks for those alone that have its limits, and another costs seconds.
    """
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    bounds = {
        resource.RLIMIT_AS: (taken // _MEMORY_BYTES + 2) * _MEMORY_BYTES,
        resource.RLIMIT_FSIZE: _FILE_BYTES,
    }
    before = {kind: resource.getrlimit(kind) for kind in bounds}
    for kind, soft in bounds.items():
        resource.setrlimit(kind, (soft, before[kind][1]))
    try:
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)
