"""The versions of programs that carry out runs, as the programs tell them.

Asking executes the program, so only a start and `doctor` ask, and only for agents that may be used. A program
is asked once for as long as its file stays as it is; one that is too old is asked again each time, because a
file that starts another program stays the same when that one is replaced.
"""

import os
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import shorten
from subagent_server.host.bounded_command import start
from subagent_server.host.host_programs import NoHostProgram, user_program
from subagent_server.service.program_keys import (
    KNOWN_PROGRAMS,
    KnownProgram,
    installing,
    program_of,
    unkept_keys,
)

__all__ = ["installing", "program_of", "too_old", "unkept_keys"]

VERSION_SECONDS = 10.0
"""How long a program may take to tell its version."""
_MOST_BYTES = 4096
_VERSION = re.compile(r"(?<![\d.])(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?!\d)")

Version = tuple[int, ...]
_Known = tuple[str, int, int]
_told: dict[_Known, Version] = {}
"""Of program files by path, size and time of change: the versions that are new enough."""


def too_old(
    agent: AgentDefinition, environment: Mapping[str, str], written: Sequence[Path]
) -> tuple[str | None, str | None]:
    """Return why the program of an agent is too old, and a doubt if it does not tell its version.

    Both are sentences, or None. A program that is not there is neither, and one that works in a box, or lies
    in one of the `written` directories, is not asked: the question is put outside of the box.
    """
    if agent.sandbox == "bwrap":
        return None, None
    known, command = KNOWN_PROGRAMS.get(agent.runner), (program_of(agent) or "").strip()
    file = _file(command, environment, written)
    if known is None or file is None:
        return None, None
    least = ".".join(map(str, known.oldest))
    version = _version(file, known, environment)
    if version is None:
        told = f"The program {shorten(command)} did not tell its version within {VERSION_SECONDS:g} s"
        return None, f"{told}: the runner {agent.runner} needs {least} or newer."
    if version >= known.oldest:
        return None, None
    mine = ".".join(map(str, version))
    told = f"The program {shorten(command)} is too old for the runner {agent.runner}"
    return f"{told} ({mine}; {least} is needed): {installing(agent)}.", None


def _file(command: str, environment: Mapping[str, str], written: Sequence[Path]) -> Path | None:
    try:
        return user_program(command, environment.get("PATH"), written) if command else None
    except NoHostProgram:
        return None


def _version(file: Path, known: KnownProgram, environment: Mapping[str, str]) -> Version | None:
    try:
        facts, path = file.stat(), str(file.resolve())
    except OSError:
        return None
    key = (path, facts.st_size, facts.st_mtime_ns)
    if key in _told:
        return _told[key]
    found = _VERSION.search(_asked(file, environment))
    if found is None:
        return None
    version = tuple(map(int, found.groups()))
    if version >= known.oldest:
        _told[key] = version
    return version


def _asked(file: Path, environment: Mapping[str, str]) -> str:
    """Return the beginning of what the program says to `--version`. All its processes are bounded.

    It is asked in `/`: programs of this kind read settings of the directory that they are started in.
    """
    try:
        process = start(
            [str(file), "--version"],
            VERSION_SECONDS,
            environment,
            b"",
            with_starter=True,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError):
        return ""
    assert process.stdout is not None
    with process.stdout:
        said = _beginning(process.stdout.fileno())
    with suppress(ProcessLookupError):
        process.terminate()  # what it has left is ended with it
    process.wait()
    return said.decode("utf-8", "replace")


def _beginning(output: int) -> bytes:
    """Return the first bytes of an output, until its end, a line with a version, or the end of the time."""
    said, deadline = b"", time.monotonic() + VERSION_SECONDS
    while len(said) < _MOST_BYTES and (left := deadline - time.monotonic()) > 0:
        if not select.select([output], [], [], left)[0]:
            break
        piece = os.read(output, _MOST_BYTES - len(said))
        said += piece
        whole_lines = said[: said.rfind(b"\n") + 1]
        if not piece or _VERSION.search(whole_lines.decode("utf-8", "replace")):
            break
    return said
