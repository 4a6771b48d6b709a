"""Errors for want of room, as the system and the interpreter give them."""

import errno

import pytest

from subagent_server.run.stderr import lack_of_room
from tests.helpers.processes import run_python


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
        (MemoryError(), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (ImportError("x.so: failed to map segment from shared object"), "ulimit -v"),
        (
            ExceptionGroup("of a task group", [ValueError(), RuntimeError("can't start new thread")]),
            "ulimit -u",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), None),
        (RuntimeError("something else"), None),
        (ValueError("can't start new thread"), None),
    ],
)
def test_an_error_for_want_of_room_has_a_sentence_with_its_cure(error: Exception, cure: str | None) -> None:
    sentence = lack_of_room(error)
    assert (sentence is None) == (cure is None)
    assert sentence is None or (cure is not None and cure in sentence)


HOOKED = """
    import os
    from subagent_server.run import stderr
    stderr.exit_in_one_sentence(71)
    {act}
"""


@pytest.mark.process
@pytest.mark.parametrize("act", ["while True: os.dup(0)", "bytes(1 << 62)"])
def test_an_uncaught_lack_ends_a_program_with_one_sentence_and_its_code(act: str) -> None:
    done = run_python(HOOKED.format(act=act))
    assert done.returncode == 71 and done.stderr.count("\n") == 1 and "ulimit" in done.stderr


WAITING = """
    import resource, threading
    from pathlib import Path
    from subagent_server.process.slots import signal_when_free
    from subagent_server.run.files import Entry
    threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    signal_when_free(Entry.at(Path("ticket")))
"""


@pytest.mark.process
def test_a_run_waits_for_its_slot_also_without_room_for_a_thread() -> None:
    done = run_python(WAITING)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_every_other_uncaught_error_still_has_its_traceback() -> None:
    done = run_python(HOOKED.format(act="open('/nowhere/at/all')"))
    assert done.returncode == 1 and "Traceback" in done.stderr
