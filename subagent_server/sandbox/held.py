"""The start of a program in a box that is looked at before the program begins."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from subagent_server.sandbox.box import Box
from subagent_server.sandbox.check import check_box, child_of_closed_box
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.sandbox.trial import last_words

_SECONDS = 30.0
_PAUSE_MILLISECONDS = 1


def start_held(
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
            before(_closed_child(process, box))
            os.write(opener, b"!")
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process
    finally:
        os.close(gate)
        os.close(opener)


def _closed_child(process: "subprocess.Popen[bytes]", box: Box) -> int:
    ended = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        deadline = time.monotonic() + _SECONDS
        while (child := child_of_closed_box(process.pid, box)) is None:
            if poller.poll(_PAUSE_MILLISECONDS):
                raise BoxRefused(last_words(process))
            if time.monotonic() > deadline:
                check_box(process.pid, box)  # says what is not closed
                raise BoxRefused(f"bubblewrap did not get ready within {_SECONDS:g} s")
        return child
    finally:
        os.close(ended)
