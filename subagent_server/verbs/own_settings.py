"""What the user alone sets for runs: hooks, and where a run works (this machine, Slurm, a host of `ssh`).

`hooks.json` and `slurm.json` lie next to the file of trusted directories, never in a repository. `placement`
of the agent's file comes before `--launcher` and `SUBAGENT_LAUNCHER`. What an agent file may ask of Slurm is
a closed table, checked by pattern; free options are those of the user's own `slurm.json`.

Tested in `tests/cli/test_hooks.py` and `tests/process/test_slurm.py`.
"""

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from subagent_server.process import cleanup
from subagent_server.process.launcher import Launcher
from subagent_server.run.agent_definition import Placement
from subagent_server.run.errors import HostError, shorten
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.records import Record, first_problem
from subagent_server.settings import Settings, read_own_file
from subagent_server.verbs.live_runs import environment_for_host, host_program

T = TypeVar("T")


class _NotUsed(Exception):
    """A file of the user cannot be used: the end of a sentence with its path and the reason."""


def _own(settings: Settings, name: str, parse: Callable[[bytes], T], usual: T) -> T:
    """Return the content of a file of the user, as `parse` reads it; `usual` without it. Raises _NotUsed."""
    if settings.trust_file is None:
        return usual
    path = settings.trust_file.with_name(name)
    try:
        return parse(read_own_file(path))
    except FileNotFoundError:
        return usual
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise _NotUsed(f"{shorten(str(path), 200)} is not used ({why}): fix it.") from error


# -- Hooks: commands that a run starts when it asks, and when it ends.


EVENTS = ("onQuestion", "onEnd")
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMUX"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    "SUBAGENT_RUNS",
)
"""The variables of the starter that a hook gets: no key, and nothing that an agent file sets."""


def hooks_for_run(settings: Settings) -> tuple[str, list[str]]:
    """Return the hooks for a run, and a warning if the file of the user cannot be used.

    A run hands on the hooks that it got itself.
    """
    if settings.is_of_a_run:
        return settings.environment.get(cleanup.VARIABLE, ""), []
    try:
        hooks = _own(settings, "hooks.json", partial(_commands, settings), dict[str, list[str]]())
    except _NotUsed as error:
        return "", [f"No hook is called, because {error}"]
    if not hooks:
        return "", []
    of_host = environment_for_host(settings)
    environment = {name: of_host[name] for name in _PASSED_ON if name in of_host}
    return json.dumps({**hooks, "environment": environment}), []


def _commands(settings: Settings, content: bytes) -> dict[str, list[str]]:
    """Return the command of each event, its program by its path. Raises ValueError."""
    hooks = json.loads(content)
    if not isinstance(hooks, dict) or not set(hooks) <= set(EVENTS):
        raise ValueError(f"it must be an object with {' and '.join(EVENTS)}")
    commands: dict[str, list[str]] = {}
    for event, value in hooks.items():
        words = shlex.split(value) if isinstance(value, str) else value
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{event} must be a command: a text, or a list of its words")
        try:
            program = host_program(settings, words[0])
        except NoHostProgram as error:
            why = f"the program {shorten(words[0])} of {event} cannot be used: {error.why}"
            raise ValueError(why) from error
        commands[event] = [str(program), *words[1:]]
    return commands


# -- Where a run works.


_OURS = (
    *("--job-name", "--requeue", "--output", "--error", "--export-file", "--array", "--chdir"),
    *("--clusters", "--test-only", "--wait", "--wrap"),
)
"""Options on which the launcher itself depends. sbatch takes any beginning of a name for the whole."""
_AT_SLURM = {"cpus": "cpus-per-task", "memory": "mem"}
"""The options of sbatch that have another name than the key of `placement`."""

_Named = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.,-]{1,64}$")]
_Option = Annotated[
    str, StringConstraints(pattern=r"^--[a-z][a-z-]{1,40}(=[A-Za-z0-9_.,:/@%+=&|*()\[\]-]{1,200})?$")
]


class SlurmSettings(Record, extra="forbid"):
    """The user's own settings of Slurm; `python` is the interpreter on nodes, where it has another path."""

    account: _Named | None = None
    qos: _Named | None = None
    options: list[_Option] = Field(default_factory=list, max_length=32)
    python: Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f]{1,500}$")] = sys.executable


class BadSlurmSettings(HostError):
    """The user's `slurm.json` cannot be used."""

    code = "bad_slurm_settings"


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

    try:
        own = _own(settings, "slurm.json", _slurm_settings, SlurmSettings())
    except _NotUsed as error:
        raise BadSlurmSettings(f"Runs cannot go to {on}, because {error}") from error
    if on.startswith("ssh:"):
        return SshLauncher(on.removeprefix("ssh:"), own.python)
    wanted = {} if placement is None else placement.model_dump(exclude={"on"}, exclude_none=True)
    wanted |= own.model_dump(include={"account", "qos"}, exclude_none=True)
    options = [f"--{_AT_SLURM.get(name, name)}={value}" for name, value in wanted.items()]
    return SlurmLauncher("slurm", own.python, [*options, *own.options])


def _slurm_settings(content: bytes) -> SlurmSettings:
    """Return the settings in a file. Raises ValueError."""
    try:
        found = SlurmSettings.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    for option in found.options:
        if any(name.startswith(option.partition("=")[0]) for name in _OURS):
            raise ValueError(f"{option} is set by the launcher itself")
    return found
