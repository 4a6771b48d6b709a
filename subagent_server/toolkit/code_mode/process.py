"""The process of one program: started in a box or without, interrupted, and ended with its whole tree."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subagent_server.host import process_scan, processes
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.check import check_box
from subagent_server.sandbox.limits import bounding_processes, limits_as_resources
from subagent_server.toolkit.code_mode.interpreter import modules_file, program_command
from subagent_server.toolkit.workspace.output import OutputCapture
from subagent_server.toolkit.workspace.output_reader import OutputReader
from subagent_server.toolkit.workspace.process_tree import Spare, end_box, end_tree, spare_none

MARK = "SUBAGENT_PROGRAM"
"""The variable by which the processes of a program are found that have left its session."""
_SIGNALLED = 128
"""Bubblewrap ends with this plus the number of the signal that ended the program in it."""


@dataclass(frozen=True)
class ProgramPlace:
    """Where programs run: `python` in `cwd`, with exactly `environment`, or in a `box` with its own.

    `spare` says which processes outlive the program that has started them.
    """

    python: str
    cwd: Path
    environment: Mapping[str, str]
    box: Callable[[], Box] | None = None
    spare: Spare = spare_none


class ProgramProcess:
    """A started program. `line` is the host's end of its socket."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        line: socket.socket,
        output: OutputReader,
        box: Box | None,
        mark: str,
        spare: Spare,
    ) -> None:
        self.line = line
        self._process = process
        self._output = output
        self._box = box
        self._mark = mark
        self._spare = spare

    @classmethod
    def start(cls, place: ProgramPlace, mark: str, capture: OutputCapture) -> "ProgramProcess":
        """Start a program that waits for its task; its output goes to `capture`.

        Raises:
            OSError: there is no such interpreter, or no room for it.
            BoxRefused: there is no box as it was asked for.
        """
        box = None if place.box is None else place.box()
        line, inner = socket.socketpair()
        modules = modules_file()
        output, output_end = os.pipe()
        command = program_command(place.python, inner.fileno(), modules)
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output_end, "stderr": output_end}
        descriptors = (inner.fileno(), modules)
        try:
            if box is not None:
                process = box.start(command, pass_fds=descriptors, **streams)
            else:
                process = subprocess.Popen(
                    command,
                    pass_fds=descriptors,
                    cwd=place.cwd,
                    env={**place.environment, MARK: mark},
                    start_new_session=True,
                    **streams,
                )
        except BaseException:
            line.close()
            os.close(output)
            raise
        finally:
            inner.close()
            os.close(modules)
            os.close(output_end)
        return cls(process, line, OutputReader(output, lambda: capture), box, mark, place.spare)

    def check(self) -> dict[str, int]:
        """Look at the walls of its box from outside; return the limits that the program sets for itself.

        Raises:
            BoxRefused: the box is not closed.
        """
        if self._box is None:
            return {}
        bounding = bounding_processes(check_box(self._process.pid, self._box), self._box.limits)
        if bounding is not None:
            bounding.wait()
        return limits_as_resources(self._box.limits)

    async def exited(self) -> None:
        """Return when the process has ended."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(descriptor, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does, to the program and to all that it has started."""
        leader = processes.identify(self._process.pid)
        below = process_scan.descendants([self._process.pid], spare=self._spare)
        targets = below[1:] if self._box is not None else [leader, *below]  # not the first process of a box
        for identity in targets:
            if identity is not None:
                processes.send_signal(identity, signal.SIGINT)

    def end(self) -> tuple[int | None, str]:
        """Kill all that is left of the program; return its exit code (negative: the signal) and its output.

        Blocking. The code is None if the kernel could not kill it.
        """
        if self._box is None:
            end_tree(self._process.pid, 0, self._spare)
            for identity in process_scan.marked(f"{MARK}={self._mark}"):
                if not self._spare(identity):
                    processes.send_signal(identity, signal.SIGKILL)
        else:
            end_box(self._process.pid, 0)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        in_box = self._box is not None and code is not None and code > _SIGNALLED
        self._output.close()
        return (_SIGNALLED - code if in_box and code is not None else code), self._output.take().finish()
