"""Repositories of git, with an identity of their own."""

import subprocess
from pathlib import Path


def git(*words: object) -> str:
    """Run git with these words and return its output."""
    settings = ("user.name=A", "user.email=a@example.com", "maintenance.auto=false")
    own = [word for setting in settings for word in ("-c", setting)]
    command = ["git", *own, *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout


def make_repository(directory: Path) -> None:
    """Make a directory a repository with one commit."""
    git("init", "--quiet", directory)
    git("-C", directory, "commit", "--quiet", "--allow-empty", "-m", "first")
