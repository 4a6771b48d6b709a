"""Access to this process: its memory, its environment, its open files (PR_SET_DUMPABLE of prctl(2)).

A process that is not dumpable is looked into by root alone, not by the other processes of its user, and
leaves no core dump. What it forks is like it; what it executes is dumpable again. It cannot open all files
about itself below `/proc/self` either: `environ`, `mem` and `pagemap` belong to root then.
Linux only; elsewhere nothing happens. Standard library only: the shim imports this module.
"""

import ctypes
import resource

_prctl = getattr(ctypes.CDLL(None), "prctl", None)
_PR_SET_DUMPABLE = 4


def keep_others_out() -> None:
    """Make this process, and what it forks, not dumpable."""
    if _prctl is not None:
        _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def let_others_in() -> None:
    """Make this process dumpable, as every program is that has just been executed."""
    if _prctl is not None:
        _prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def forbid_core_dumps() -> None:
    """Let neither this process nor anything that it starts leave a core dump, for good."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
