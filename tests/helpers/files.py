"""Looking at directories."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def names(directory: Path) -> list[str]:
    """Return the names in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())


def open_descriptors() -> int:
    """Return how many descriptors this process has open (and the one that is needed to look)."""
    return len(names(Path("/proc/self/fd")))


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes: a write fails there as on a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
