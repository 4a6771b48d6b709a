"""Where a run works: this machine, a job of Slurm, or a host of `ssh`; and what its agent asks for there.

`placement` of the agent's file comes first, then `--launcher` and `SUBAGENT_LAUNCHER`. What an agent file may
ask of Slurm is a closed table, checked by pattern; free options are those of the user's own `slurm.json`,
beside the file of trusted directories.
"""

import os
import re
import stat
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from subagent_server.process.launcher import Launcher
from subagent_server.run.agent_definition import Placement
from subagent_server.run.errors import HostError, shorten
from subagent_server.run.records import Record
from subagent_server.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9_.,-]{1,64}")
_OPTION = re.compile(r"--[a-z][a-z-]{1,40}(=[A-Za-z0-9_.,:/@%+=&|*()\[\]-]{1,200})?")
_OURS = frozenset(
    {"--job-name", "--requeue", "--output", "--error", "--export", "--export-file", "--array", "--chdir"}
)
"""Options on which the launcher itself depends."""
_MOST_BYTES = 64 << 10

_Named = Annotated[str, StringConstraints(pattern=rf"^{_NAME.pattern}$")]
_Option = Annotated[str, StringConstraints(pattern=rf"^{_OPTION.pattern}$")]


class SlurmSettings(Record):
    """The user's own settings of Slurm; `python` is the interpreter on nodes, where it has another path."""

    account: _Named | None = None
    qos: _Named | None = None
    options: list[_Option] = Field(default_factory=list, max_length=32)
    python: Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f]{1,500}$")] = sys.executable


class BadSlurmSettings(HostError):
    """The user's `slurm.json` cannot be used."""

    code = "bad_slurm_settings"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"Runs cannot go to Slurm, because {shorten(str(path), 200)} is not used ({why}): fix it."
        )


def slurm_settings(settings: Settings) -> SlurmSettings:
    """Return the user's own settings; the defaults without a file. Raises BadSlurmSettings."""
    if settings.trust_file is None:
        return SlurmSettings()
    path = settings.trust_file.with_name("slurm.json")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return SlurmSettings()
    except OSError as error:
        raise BadSlurmSettings(path, error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise BadSlurmSettings(path, "it must be a regular file of yours that others cannot write")
        content = file.read(_MOST_BYTES)
    try:
        found = SlurmSettings.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadSlurmSettings(
            path, f"{'.'.join(map(str, first['loc'])) or 'all'}: {first['msg']}"
        ) from error
    if taken := [option for option in found.options if option.partition("=")[0] in _OURS]:
        raise BadSlurmSettings(path, f"{taken[0]} is set by the launcher itself")
    return found


def launcher_for(settings: Settings, placement: Placement | None, local: Launcher) -> Launcher:
    """Return the launcher that an agent's file, or else the settings, name; `local` is that of this host.

    Raises:
        BadSlurmSettings.
    """
    on = placement.on if placement is not None and placement.on else settings.launcher
    if on == "local":
        return local
    from subagent_server.process.remote import SshLauncher  # most starts are local
    from subagent_server.process.slurm import SlurmLauncher

    own = slurm_settings(settings)
    if on.startswith("ssh:"):
        return SshLauncher(on.removeprefix("ssh:"), settings.environment, own.python)
    options = [*_options(placement or Placement()), *own.options]
    options += [f"--{name}={value}" for name in ("account", "qos") if (value := getattr(own, name))]
    return SlurmLauncher("slurm", settings.environment, own.python, options)


def _options(placement: Placement) -> list[str]:
    names = {
        "partition": placement.partition,
        "cpus-per-task": placement.cpus,
        "mem": placement.memory,
        "time": placement.time,
        "gpus": placement.gpus,
        "constraint": placement.constraint,
    }
    return [f"--{name}={value}" for name, value in names.items() if value is not None]
