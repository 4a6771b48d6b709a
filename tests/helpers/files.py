"""Looking at directories."""

from pathlib import Path


def names(directory: Path) -> list[str]:
    """Return the names in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())


def open_descriptors() -> int:
    """Return how many descriptors this process has open (and the one that is needed to look)."""
    return len(names(Path("/proc/self/fd")))
