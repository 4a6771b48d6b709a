"""Repositories of git, with an identity of their own."""

import os
import subprocess
from pathlib import Path


def git(*words: object) -> str:
    """Run git with these words and return its output."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    command = ["git", *identity, *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout


def make_repository(directory: Path) -> None:
    """Make a directory a repository with one commit."""
    git("init", "--quiet", directory)
    git("-C", directory, "commit", "--quiet", "--allow-empty", "-m", "first")


def git_of_somebody(*words: str, cwd: Path) -> str:
    """Run git in a directory as somebody who has no configuration, and return its output."""
    who = {
        f"GIT_{role}_{what}": "somebody@example.org"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_NOSYSTEM": "1", **who}
    command = ["git", *words]
    done = subprocess.run(
        command, cwd=cwd, env=environment, check=True, capture_output=True, encoding="utf-8", timeout=120
    )
    return done.stdout
