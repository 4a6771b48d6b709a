"""Memory in huge pages, which makes the forks of a large process cheap.

A fork copies one entry for each page of private memory, and 100 MiB have 25,000 of them; of huge pages there
are fifty. A fork that writes somewhere still gets a copy of 4 KiB only. Linux 6.1 or later; elsewhere nothing
happens. Standard library only.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress

from subagent_server.host import private_memory

HUGE = 2 << 20
"""How many bytes a huge page has; where it has more, the kernel says no."""
_MADV_COLLAPSE = 25


def gather() -> None:
    """Move the private memory of this process into huge pages, as far as the kernel can (madvise(2))."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        private_memory.advise(list(_whole_pages()), _MADV_COLLAPSE)


def _whole_pages() -> Iterator[private_memory.Range]:
    """Yield the ranges of anonymous memory that huge pages would fill."""
    for begin, end in private_memory.ranges(anonymous=True):
        first, after = -(-begin // HUGE) * HUGE, end // HUGE * HUGE
        if first < after:
            yield first, after
