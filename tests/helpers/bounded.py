"""The command over what is hostile: each call has a bound that the kernel keeps.

It has so little memory and room for files that endless work is noticed at once.
"""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.commands import PROGRAM

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
        subprocess.TimeoutExpired: it did not end within `seconds`.
        AssertionError: it died, or showed a traceback.
    """
    began = time.monotonic()
    files = [home / "command.out", home / "command.err"]
    bounds = ["prlimit", f"--as={_MEMORY_BYTES}", f"--fsize={_FILE_BYTES}", "--core=0", "--"]
    with files[0].open("wb") as out, files[1].open("wb") as err:
        code = subprocess.run(
            [*bounds, *PROGRAM, *words],
            cwd=cwd or home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=seconds,
            check=False,
        ).returncode
    said = [file.read_bytes().decode("utf-8", "replace") for file in files]
    ended = Ended(words, code, said[0], said[1], time.monotonic() - began)
    assert ended.code >= 0, f"died: {ended}"
    assert "Traceback" not in ended.said, str(ended)
    return ended
