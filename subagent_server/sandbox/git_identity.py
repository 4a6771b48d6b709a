"""The user's name and address for commits in a box, where no configuration of the user is shown."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 5.0
_KEYS = {"user.name": "NAME", "user.email": "EMAIL"}
_SEEN = ("PATH", "HOME", "XDG_CONFIG_HOME", "LANG")


def git_identity(environment: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Return the variables with the author for git in a box; those of `environment` come first.

    They hold what git would use in `cwd`, so that a repository with an identity of its own keeps it.
    """
    found = {}
    for key, value in _settings(environment, cwd).items():
        for role in ("AUTHOR", "COMMITTER"):
            found[f"GIT_{role}_{_KEYS[key]}"] = value
    given = {name: environment[name] for name in _variables() if name in environment}
    return found | given


def _variables() -> list[str]:
    return [f"GIT_{role}_{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]


def _settings(environment: Mapping[str, str], cwd: Path) -> dict[str, str]:
    program = shutil.which("git", path=environment.get("PATH", os.defpath))
    if (
        program is None
        or not Path(program).is_absolute()
        or Path(os.path.realpath(program)).is_relative_to(cwd)
    ):
        return {}  # a git that lies where the run writes is not for the outside
    try:
        done = subprocess.run(
            [program, "config", "-z", "--get-regexp", r"^user\.(name|email)$"],
            env={name: environment[name] for name in _SEEN if name in environment},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    entries = done.stdout.decode("utf-8", "replace").split("\0")
    pairs = (entry.partition("\n") for entry in entries if entry)
    return {key: value for key, _, value in pairs if key in _KEYS and value}
