"""The command over what is hostile: each call has a bound that the kernel keeps.

It has so little memory and room for files that endless work is noticed at once.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.forking import Limits, fork_command

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


def call_bounded(
    *words: str,
    home: Path,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    seconds: int = HANG_SECONDS,
) -> Ended:
    """Run the command to its end; its output goes through two files in `home`.

    Raises:
        AssertionError: it did not end within `seconds`, or died.
    """
    began = time.monotonic()
    files = [home / "command.out", home / "command.err"]
    descriptors = [os.open(os.devnull, os.O_RDONLY)]
    descriptors += [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for file in files]
    nothing, out, err = descriptors
    limits = Limits(seconds, _MEMORY_BYTES, _FILE_BYTES)
    try:
        command = fork_command(
            words, (nothing, out, err), cwd=cwd or home, environment=environment, limits=limits
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    code = command.wait(2 * seconds)
    said = [file.read_bytes().decode("utf-8", "replace") for file in files]
    ended = Ended(words, code, said[0], said[1], time.monotonic() - began)
    assert ended.code != -signal.SIGALRM, f"not over after {seconds} s: {ended}"
    assert ended.code >= 0, f"died: {ended}"
    assert "Traceback" not in ended.said, str(ended)
    return ended
