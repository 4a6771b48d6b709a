"""Close the memory, environment and open files of this process to the user's other processes.

Only root can look into a process that is not dumpable (PR_SET_DUMPABLE of prctl(2)), not the other processes
of its user; it leaves no core dump. Its forks are not dumpable either; a program that it executes is again.
Some files about itself below `/proc/self` are closed to the process too: `environ`, `mem` and `pagemap`
belong to root then. Linux only; elsewhere nothing happens. Standard library only: the shim imports this
module.
"""

import ctypes
import resource

_prctl = getattr(ctypes.CDLL(None), "prctl", None)
_PR_SET_DUMPABLE = 4


def keep_others_out() -> None:
    """Make this process, and its forks, not dumpable."""
    if _prctl is not None:
        _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def forbid_core_dumps() -> None:
    """Forbid core dumps of this process and all its descendants, for good."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
