"""Saying on stderr what went wrong beside the work. The work goes on, even where that cannot be said.

Standard library only: the shim imports this module.
"""

import sys
import traceback
from contextlib import suppress


def tell(sentence: str) -> None:
    """Print a line. stderr of a run is a file: a disk that refuses the others refuses this one too."""
    with suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)


def tell_exception() -> None:
    """Print where the exception that is being handled comes from."""
    with suppress(OSError):
        traceback.print_exc()
        sys.stderr.flush()


def flush() -> None:
    """Let nothing that was told be lost, before a process leaves without ado."""
    with suppress(OSError):
        sys.stderr.flush()
