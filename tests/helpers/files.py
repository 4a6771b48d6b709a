"""Files and directories of tests."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def names(directory: Path) -> list[str]:
    """Return the names in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())


def open_descriptors() -> int:
    """Return how many descriptors this process has open (and the one that is needed to look)."""
    return len(names(Path("/proc/self/fd")))


def write_agent(agents: Path, name: str, prompt: str, /, **keys: Any) -> None:
    """Write an agent file. Its values are JSON, which YAML reads."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in {"name": name, **keys}.items()]
    (agents / f"{name}.md").write_text("\n".join(["---", *lines, "---", prompt]), encoding="utf-8")


def write_program(path: Path, text: str) -> Path:
    """Write a file that can be executed, and the directories above it; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes: a write fails there as on a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
