"""Memory in huge pages, which makes the forks of a large process cheap.

A fork copies one entry for each page of private memory, and 100 MiB have 25,000 of them; of huge pages there
are fifty. A fork that writes somewhere still gets a copy of 4 KiB only. Linux 6.1 or later; elsewhere nothing
happens. Standard library only.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HUGE = 2 << 20
"""How many bytes a huge page has; where it has more, the kernel says no."""
_MADV_COLLAPSE = 25
_WRITABLE = "rw-p"


def gather() -> None:
    """Move the private memory of this process into huge pages, as far as the kernel can (madvise(2))."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with suppress(OSError):
        for begin, end in list(_whole_pages()):
            madvise(begin, end - begin, _MADV_COLLAPSE)  # what cannot be moved stays as it is


def _whole_pages() -> Iterator[tuple[int, int]]:
    """Yield the ranges of anonymous memory that huge pages would fill (proc_pid_maps(5))."""
    for line in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights != _WRITABLE or inode != "0" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in place.split("-"))
        begin, end = -(-begin // HUGE) * HUGE, end // HUGE * HUGE
        if begin < end:
            yield begin, end
