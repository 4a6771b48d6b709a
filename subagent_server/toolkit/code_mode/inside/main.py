"""The course of a program: get the task, look at the code, run it, report how it ended."""

from __future__ import annotations

import _ast
import os
import signal
import sys
import threading

from subagent_server.toolkit.code_mode.inside.functions import Printed, names_of
from subagent_server.toolkit.code_mode.inside.line import Line
from subagent_server.toolkit.code_mode.inside.preflight import faults_of, is_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FILE = "program.py"
_OWN = "<code mode>"
_MOST_FAULTS = 10
_ADJUSTMENT = "/proc/self/oom_score_adj"
_TOP_LEVEL_AWAIT = 0x2000
_FUTURE_ANNOTATIONS = 0x1000000
_TREE = 0x400


def _with_value(tree: Any) -> None:
    """Keep the value of a last expression, under a name that no code has."""
    if tree.body and type(tree.body[-1]).__name__ == "Expr":
        last = tree.body[-1]
        place = {field: getattr(last, field) for field in last._attributes}
        target = _ast.Name(id=" value", ctx=_ast.Store(), **place)
        tree.body[-1] = _ast.Assign(targets=[target], value=last.value, **place)


def _run(source: str, names: dict[str, Any], line: Line) -> tuple[int, int]:
    """Run the code; return how it ended, as the record says it, and the exit code."""
    flags = _TOP_LEVEL_AWAIT | _FUTURE_ANNOTATIONS
    try:
        tree: Any = compile(source, FILE, "exec", flags | _TREE, dont_inherit=True)
        faults = faults_of(tree, names, line.misfits)
        calls_run = is_entry(tree)
        _with_value(tree)
        code = compile(tree, FILE, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        _print_error(error)
        return _refused()
    if faults:
        for number, fault in faults[:_MOST_FAULTS]:
            print(f"{FILE}, line {number}: {fault}", file=sys.stderr)
        return _refused()
    try:
        _keep_source(source)
        _execute(code, calls_run, names)
        _join_threads()
    except SystemExit as error:
        return _exit_code(error.code)
    except MemoryError as error:
        _print_error(error)
        return 2, 2
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        _print_error(error)
        return 1, 1
    return 0, 0


def _execute(code: Any, calls_run: bool, names: dict[str, Any]) -> None:
    space = vars(sys.modules["__main__"])
    for name in [name for name in space if name not in ("__name__", "__builtins__")]:
        del space[name]
    space.update({**names, "__file__": FILE})
    _finish(eval(code, space))
    _show(space.pop(" value", None))
    if calls_run:
        _show(_finish(space["run"]()))


def _finish(value: Any) -> Any:
    """Return the value of a coroutine, or what was given."""
    if not hasattr(value, "send") or not hasattr(value, "cr_code"):
        return value
    import asyncio

    return asyncio.run(value)


def _show(value: Any) -> None:
    if value is not None and not isinstance(value, Printed):
        print(value if isinstance(value, str) else repr(value))


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _refused() -> tuple[int, int]:
    print("Nothing was run.", file=sys.stderr)
    return 1, 1


def _exit_code(code: Any) -> tuple[int, int]:
    if code is None:
        return 0, 0
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        return 1, 1
    return int(code != 0), code & 0xFF


def _keep_source(source: str) -> None:
    """Let tracebacks show the lines of the program, which is in no file here."""
    import linecache

    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)


def _print_error(error: BaseException) -> None:
    """Print a traceback without the frames of this file."""
    import traceback

    shown = traceback.TracebackException.from_exception(error)
    todo = [shown]
    while todo:
        each = todo.pop()
        each.stack[:] = [frame for frame in each.stack if frame.filename != _OWN]
        todo += [other for other in (each.__cause__, each.__context__) if other is not None]
    print("".join(shown.format()), end="", file=sys.stderr)


def _bound_resources(limits: dict[str, int]) -> None:
    """Keep the program, and all that it starts, to the limits of its box."""
    if limits:
        import contextlib
        import resource

        for name, bound in limits.items():
            hard = resource.getrlimit(getattr(resource, name))[1]
            most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(getattr(resource, name), (most, most))
        with contextlib.suppress(OSError), open(_ADJUSTMENT, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("500")  # short of memory, the kernel ends this before the worker


def main(descriptor: int) -> NoReturn:
    """Do the whole of a program, and exit."""
    line = Line(descriptor)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        sys.argv[:] = [FILE]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        task = line.task()
        _bound_resources(task["limits"])
        names = names_of(line, task["functions"], task["types"])
    except Exception as error:  # noqa: BLE001 - a fault of this file, which ends the run
        line.send({"fault": f"{type(error).__name__}: {error}"})
        os._exit(3)
    end, exit_code = _run(task["code"], names, line)
    line.send({"end": end})
    sys.exit(exit_code)
