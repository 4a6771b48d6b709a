"""Start a program in a box behind a gate, which opens when the box is found closed."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from subagent_server.sandbox.box import Box
from subagent_server.sandbox.check import child_of_closed_box
from subagent_server.sandbox.limits import bounding_processes, limits_as_shell
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.sandbox.trial import ended_early

_SECONDS = 30.0
_PAUSE_MILLISECONDS = 1


def start_gated(
    box: Box,
    argv: Sequence[str],
    *,
    more: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    before: Callable[[int], None] = lambda _: None,
    **how: Any,
) -> "subprocess.Popen[bytes]":
    """Start `argv` in a box of its own once the box is found closed. Blocking, for some milliseconds.

    `before` is called with the pid that becomes the program, before it does.

    Raises:
        BoxRefused: there is no such box here. Nothing is left running.
        OSError: bubblewrap cannot be started.
    """
    gate, opener = os.pipe()
    try:
        holding = ["--block-fd", str(gate), *more]
        process = box.start(argv, more=holding, pass_fds=(*pass_fds, gate), **how)
        try:
            try:
                child = closed_child(process.pid, box)
            except BoxRefused as refusal:
                raise (ended_early(process) if process.poll() is not None else refusal) from None
            before(child)
            os.write(opener, b"!")
        except BaseException:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            raise
        return process
    finally:
        os.close(gate)
        os.close(opener)


def start_bounded(box: Box, argv: Sequence[str], **how: Any) -> "subprocess.Popen[bytes]":
    """Start `argv` as `start_gated` does, within the limits of the box. Raises as that does."""

    def bound(pid: int) -> None:
        bounding = bounding_processes(pid, box.limits)
        if bounding is not None:
            bounding.wait()

    within = ["bash", "--noprofile", "--norc", "-c", f'{limits_as_shell(box.limits)}exec "$@"', "bash"]
    return start_gated(box, [*within, *argv], before=bound, **how)


def closed_child(leader: int, box: Box) -> int:
    """Wait until the box of a bubblewrap that holds its program back is closed; return the process in it.

    Raises:
        BoxRefused: bubblewrap has ended, or the box does not close.
    """
    try:
        ended = os.pidfd_open(leader)
    except ProcessLookupError as error:  # it ended at once, and asyncio's watcher has reaped it already
        raise BoxRefused("bubblewrap ended before it was closed") from error
    try:
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        deadline = time.monotonic() + _SECONDS
        while (child := child_of_closed_box(leader, box)) is None:
            if poller.poll(_PAUSE_MILLISECONDS):
                raise BoxRefused("bubblewrap ended before it was closed")
            if time.monotonic() > deadline:
                raise BoxRefused(f"bubblewrap did not close it within {_SECONDS:g} s")
        return child
    finally:
        os.close(ended)
