"""Do work that a hostile text could draw out for ever in a separate process that can be killed.

A forked copy of this process does the work, so nothing has to be handed over or imported. Only the forking
thread lives on in the copy: the work must be pure computation without any waiting.
"""

import asyncio
import gc
import json
import math
import os
import re
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from subagent_server.run import processes
from subagent_server.run.files import held_open, in_memory, write_all
from subagent_server.run.schemas import NEWEST, validator_name
from subagent_server.run.states import cut

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator


_MORE_MEMORY = 1 << 30
"""How much memory the work may take beyond what this process has."""
_MOST_DESCRIPTORS = 1 << 20


class WorkDied(Exception):
    """The work ended without an answer: it raised, or took too much memory."""


async def killable(work: Callable[[], Any], seconds: float) -> Any:
    """Return the result of `work`, JSON data; the event loop keeps running meanwhile.

    Call it in the main thread. Whatever ends the wait, the process is dead and collected afterwards.

    Raises:
        TimeoutError: the work took longer than `seconds`, and was killed.
        WorkDied: the process ended without an answer.
        OSError: the process could not be made.
    """
    with held_open(in_memory(b"")) as answer:
        pid = _forked(work, answer, seconds)
        with _collected(pid), held_open(os.pidfd_open(pid)) as pidfd:
            await readable(pidfd, seconds)
        try:
            return json.loads(os.pread(answer, os.fstat(answer).st_size, 0))
        except ValueError as error:
            raise WorkDied("The work ended without an answer.") from error


def _forked(work: Callable[[], Any], into: int, seconds: float) -> int:
    """Fork the process of the work and return its pid. A signal that comes meanwhile is not for the copy."""
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():  # of threads: none of them is needed by the work
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _do(work, into, seconds, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _do(work: Callable[[], Any], into: int, seconds: float, parent: int) -> NoReturn:
    """Be the process of the work. The process leaves without cleaning up: all its data are copies."""
    try:
        processes.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before it could be watched
        gc.disable()  # a finalizer could write into connections that are the parent's
        _forget_signals()
        os.closerange(3, into)  # locks and slots among them: a copy would keep them held
        os.closerange(into + 1, _MOST_DESCRIPTORS)
        _bound(seconds)
        write_all(into, json.dumps(work()).encode())
    except BaseException:  # noqa: BLE001 - the outermost frame of a process; its parent sees it
        os._exit(1)
    finally:
        os._exit(0)


def _forget_signals() -> None:
    """Handle signals as a new program does, so that no signal of this process reaches the parent's loop."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _bound(seconds: float) -> None:
    """Bound time and memory in the kernel as well; time, in case that even the parent hangs."""
    processor = math.ceil(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (processor, processor))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    wanted = pages * resource.getpagesize() + _MORE_MEMORY
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


@contextmanager
def _collected(pid: int) -> Iterator[None]:
    """Kill the process if still alive, and collect it. A killed process ends in moments."""
    try:
        yield
    finally:
        with suppress(ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # as long as it is not collected, the pid is no other's
            os.waitpid(pid, 0)


async def readable(descriptor: int, seconds: float | None = None) -> None:
    """Wait until a descriptor can be read, as a pidfd when its process has ended.

    Raises:
        TimeoutError: it cannot within `seconds`.
        PermissionError: it is that of a file, which can always be read.
    """
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(descriptor, is_readable.set)
    try:
        async with asyncio.timeout(seconds):
            await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)


# -- The check of a value against a JSON Schema, in a process that can be killed.


CHECK_SECONDS = 5.0
"""How long a check may take: a pattern in a schema can take for ever over a few characters."""


def validator(schema: Any) -> "Validator":
    """Return the validator of a schema by its own draft. It looks nothing up, on a disk or in a network."""
    # Imported here: it takes a twentieth of a second, and most agents promise no output.
    import jsonschema
    from jsonschema_specifications import REGISTRY

    usual = getattr(jsonschema, validator_name(schema) or NEWEST)
    extend: Any = jsonschema.validators.extend  # without types in the library
    made: Validator = extend(usual, {"multipleOf": _multiple_of})(schema, registry=REGISTRY)
    return made


def _multiple_of(judge: "Validator", unit: float, value: Any, _: Any) -> Iterator["ValidationError"]:
    """Judge by the digits as they were written. The library divides floats: 19.99 was no multiple of 0.01."""
    from jsonschema.exceptions import ValidationError

    def exact(number: float) -> Fraction:
        return Fraction(repr(number) if isinstance(number, float) else number)

    if judge.is_type(value, "number") and (exact(value) / exact(unit)).denominator != 1:
        yield ValidationError(f"{value!r} is not a multiple of {unit}")


async def misfit(schema: Any, value: Any, seconds: float = CHECK_SECONDS) -> str | None:
    """Return why `value` is refused, as the end of a sentence about it; None if it fits. In the main thread.

    A value that cannot be checked within `seconds` is refused.
    """
    judge = validator(schema)
    try:
        problem: str | None = await killable(lambda: _problem(judge, value), seconds)
    except TimeoutError:
        return f"could not be held against its schema within {seconds:g} s: it needs shorter, simpler values"
    except (WorkDied, OSError) as error:
        return f"could not be held against its schema ({error}): it needs less in it"
    return None if problem is None else f"does not fit its schema: {problem}"


PATTERN_SECONDS = 5.0
"""How long a search may take: a pattern can take for ever over a few characters."""


async def searched(pattern: str, text: str) -> bool | str:
    """Return whether a pattern is found in a text, in which `^` and `$` match at lines. In the main thread.

    A text is the reason why it could not be searched, as the end of a sentence about it.
    """
    try:
        found: bool = await killable(
            lambda: re.search(pattern, text, re.MULTILINE) is not None, PATTERN_SECONDS
        )
    except TimeoutError:
        return f"was not searched within {PATTERN_SECONDS:g} s: simplify it"
    except (WorkDied, OSError) as error:
        return f"could not be searched ({error})"
    return found


def _problem(judge: "Validator", value: Any) -> str | None:
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(judge.iter_errors(value))
    except RecursionError:
        return "it, or the schema, goes too deep to be checked"
    except Unresolvable as lost:
        return f"its reference {cut(lost.ref, 200)} leads nowhere"
    return None if error is None else f"{cut(error.json_path, 200)}: {cut(error.message, 500)}"
