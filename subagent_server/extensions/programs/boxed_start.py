"""The box of a program that carries out a run.

It has one if its agent file has `sandbox: bwrap`, or if a run can write the program or what is an argument
of it and can be executed: outside of every box nothing is executed that a run could have written. The box
shows the program's installation, the relay to its worker, and instead of its state directory one of the
run's own. `network`, `sandboxLimits`, `sandboxRead` and `sandboxWrite` are those of every box.
"""

import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

from subagent_server.extensions.programs import relay
from subagent_server.extensions.programs.program_checks import KNOWN_PROGRAMS, program_of
from subagent_server.run.errors import RunRefused
from subagent_server.run.files import Directory
from subagent_server.run.host_programs import lies_in, user_program, words_to_start
from subagent_server.sandbox.box import Box, Rules
from subagent_server.sandbox.readable import BoxRefused, PathRefused, homes, showing
from subagent_server.worker.runners import RunnerSetup
from subagent_server.worker.sandbox_setup import RunBox, path_refused, refused, unprotected

ASKED = "sandbox: bwrap"
MOST_STATE_BYTES = 1 << 30
MOST_STATE_FILES = 20_000
"""Bounds of the state of a program that a continuation copies; it refuses more."""
_MODULES = "node_modules"
_EXECUTED_IN_DIRECTORY = ("__main__.py", "index.js", "package.json")
"""By these, Python and Node execute a directory that is their argument."""


def box_of_program(setup: RunnerSetup) -> RunBox | None:
    """Return the box of the agent's program, not yet built; None if it works without one. Blocking.

    A program that needs a box and cannot have one works without it if the file leaves that open (`auto`).

    Raises:
        RunRefused: `config`, if the agent asks for a box and there can be none.
    """
    asked = setup.agent.sandbox == "bwrap"
    if setup.agent.sandbox == "none" or not (asked or _is_written(setup)):
        return None
    try:
        return RunBox(setup, protects=True, adding=lambda rules: _with_program(setup, rules))
    except BoxRefused as refusal:
        if not asked:
            return None
        raise refused(ASKED, refusal.reason) from refusal
    except PathRefused as refusal:
        raise path_refused(refusal) from refusal


def built_box(box: RunBox) -> Box:
    """Return the box, with everything that the program needs in it. Blocking.

    Raises:
        BoxRefused: there can be none.
        RunRefused: `config`, if a name cannot be protected.
        OSError: the working directory cannot be read.
    """
    if opened := box.open():
        raise unprotected(opened)
    return box.built()


def copy_state(source: Directory, target: Directory) -> None:
    """Copy the state that a program has kept in a box, before another one writes in `target`. Blocking.

    The state is data: links and special files in it are left out. Those in `target` would be followed.

    Raises:
        RunRefused: `config`, if it cannot be copied, or is too much.
    """
    room = _Room()
    try:
        shutil.copytree(
            f"/proc/self/fd/{source.descriptor}/",
            f"/proc/self/fd/{target.descriptor}/",
            ignore=room.left_out,
            dirs_exist_ok=True,
        )
    except (OSError, RecursionError, _TooMuch) as error:
        raise RunRefused(
            "config",
            f"What the program has kept in {source.path} cannot be continued: {str(error)[:300]}",
            "Start a new run, and put into its prompt what it needs to know.",
        ) from error


class _TooMuch(Exception):
    """The state of a program is larger than what is copied."""


class _Room:
    """Counts what is copied."""

    def __init__(self) -> None:
        self._bytes = self._files = 0

    def left_out(self, directory: str, names: list[str]) -> list[str]:
        """Return the names that are not copied. Raises _TooMuch."""
        special = []  # a list: `copytree` looks for each name in it
        for name in names:
            found = Path(directory, name).lstat()
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                special.append(name)
                continue
            self._files += 1
            self._bytes += found.st_size
            if self._files > MOST_STATE_FILES or self._bytes > MOST_STATE_BYTES:
                raise _TooMuch(
                    f"it has more than {MOST_STATE_FILES:,} files or {MOST_STATE_BYTES >> 20} MiB."
                )
        return special


def _with_program(setup: RunnerSetup, rules: Rules) -> Rules:
    """Return the rules with the program, the relay, and the directories of the run that it writes."""
    paths, known = setup.run.paths, KNOWN_PROGRAMS.get(setup.agent.runner)
    root = Path(os.path.realpath(setup.run.store.paths.root))
    state = root / setup.run.run_id / paths.program.path.name
    placed = {}
    if known is not None:
        paths.program.make()
        paths.program_home.make()
        placed = {homes(setup.environment)[0] / known.state: state / paths.program_home.path.name}
    program = _found(setup)
    programs = [Path(sys.executable), *([program] if program is not None else [])]
    return replace(
        rules,
        environment=showing(programs, rules.environment, setup.protected.written),
        read=[*rules.read, Path(relay.__file__).resolve(), *(_installation(program) if program else [])],
        over=[*rules.over, ("--bind", state)],
        placed=placed,
    )


def host_program(setup: RunnerSetup, command: str) -> list[str]:
    """Return the command of a program that works without a box.

    It and its interpreter are looked up where no run writes, unless the agent file has `sandbox: none`.

    Raises:
        NoHostProgram.
    """
    if setup.agent.sandbox == "none":
        return [command]
    path, written = setup.environment.get("PATH"), setup.protected.written
    return words_to_start(user_program(command, path, written), path, written)


def _is_written(setup: RunnerSetup) -> bool:
    """Whether a run can write the program, or a file that the agent file names as an argument."""
    cwd = Path.cwd()
    command = program_of(setup.agent) or ""
    files = [
        cwd / part
        for word in (command, *setup.agent.args)
        if os.sep in word or word in setup.agent.args
        for part in (word, word.partition("=")[2])  # as in `--import=./hook.mjs`
    ]
    there = (path for path in files if path != cwd and _can_be_executed(path))
    return any(lies_in(path, setup.protected.written) is not None for path in there)


def _can_be_executed(path: Path) -> bool:
    """Whether something lies there that an interpreter executes: a run may have put it there for a file."""
    # `os.path`, as `Path` raises for an argument of more than 255 characters
    if os.path.isdir(path):  # noqa: PTH112
        return any(os.path.lexists(path / name) for name in _EXECUTED_IN_DIRECTORY)
    return os.path.lexists(path)


def _found(setup: RunnerSetup) -> Path | None:
    """Return the path of the program, with links; None if it is not here, which its start reports."""
    command = program_of(setup.agent) or ""
    found = shutil.which(command, path=setup.environment.get("PATH"))
    return None if found is None else Path.cwd() / found


def _installation(program: Path) -> list[Path]:
    """Return what belongs to a program besides its directory: its file, and the packages of npm around it."""
    real = Path(os.path.realpath(program))
    around = [above for above in real.parents if above.name == _MODULES]
    return [real, *around[-1:]]
