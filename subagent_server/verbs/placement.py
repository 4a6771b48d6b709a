"""Where a run works: this machine, a job of Slurm, or a host of `ssh`; and what its agent asks for there.

`placement` of the agent's file comes first, then `--launcher` and `SUBAGENT_LAUNCHER`. What an agent file may
ask of Slurm is a closed table, checked by pattern; free options are those of the user's own `slurm.json`,
beside the file of trusted directories.
"""

import re
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from subagent_server.process.launcher import Launcher
from subagent_server.run.agent_definition import Placement
from subagent_server.run.errors import HostError, shorten
from subagent_server.run.records import Record
from subagent_server.settings import Settings, read_own_file

_NAME = re.compile(r"[A-Za-z0-9_.,-]{1,64}")
_OPTION = re.compile(r"--[a-z][a-z-]{1,40}(=[A-Za-z0-9_.,:/@%+=&|*()\[\]-]{1,200})?")
_OURS = (
    *("--job-name", "--requeue", "--output", "--error", "--export-file", "--array", "--chdir"),
    *("--clusters", "--test-only", "--wait", "--wrap"),
)
"""Options on which the launcher itself depends. sbatch takes any beginning of a name for the whole."""
_AT_SLURM = {"cpus": "cpus-per-task", "memory": "mem"}
"""The options of sbatch that have another name than the key of `placement`."""

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
        content = read_own_file(path)
    except FileNotFoundError:
        return SlurmSettings()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadSlurmSettings(path, str(why)) from error
    try:
        found = SlurmSettings.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadSlurmSettings(
            path, f"{'.'.join(map(str, first['loc'])) or 'all'}: {first['msg']}"
        ) from error
    for option in found.options:
        if any(name.startswith(option.partition("=")[0]) for name in _OURS):
            raise BadSlurmSettings(path, f"{option} is set by the launcher itself")
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
    wanted = {} if placement is None else placement.model_dump(exclude={"on"}, exclude_none=True)
    wanted |= own.model_dump(include={"account", "qos"}, exclude_none=True)
    options = [f"--{_AT_SLURM.get(name, name)}={value}" for name, value in wanted.items()]
    return SlurmLauncher("slurm", settings.environment, own.python, [*options, *own.options])
