"""The part of this package that runs inside a program's own interpreter, around its code.

Any Python since 3.9 runs it, with the standard library alone. It is given to the interpreter as text
(`execution.py`), because a box does not show this package, and is never imported here. It imports little,
because every program waits for it.

Records on the socket to the host are lines of JSON:

    {"ready": true}                                           the first record, before this module is there
    {"call": 1, "function": "github.get", "arguments": {}}    a call, answered by its number
    {"end": 0}                                                0 well, 1 it raised, 2 out of memory
    {"fault": "..."}                                          this module has failed; the exit code is 3

The host (`execution.Channel`) trusts them no more than the code itself, which can write anything here.
"""

from __future__ import annotations

import _ast
import builtins
import json
import os
import signal
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FILE = "program.py"
_OWN = "<code mode>"
_ADJUSTMENT = "/proc/self/oom_score_adj"
_MOST_THREADS = 32
_TOP_LEVEL_AWAIT = 0x2000
_FUTURE_ANNOTATIONS = 0x1000000
_TREE = 0x400


class ToolError(Exception):
    """A tool has failed; the text says why."""

    __module__ = "__main__"  # so that a traceback names it as the code does


class Text(str):
    """The text of a result. `json()` is its value."""

    value: Any = None

    def json(self) -> Any:
        """Return the structured value that came with the text, else the text read as JSON."""
        return json.loads(self) if self.value is None else self.value


class Line:
    """The socket to the host. Threads may call at the same time: one of those that wait reads for all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._owner = os.getpid()
        self._unread = b""
        self._number = 0
        self._most_bytes = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._reading = False
        self._sending = threading.Lock()
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=lambda: os.close(descriptor))

    def task(self) -> dict[str, Any]:
        """Return the task of the program."""
        task = self._read()
        self._most_bytes = task["mostBytes"]
        return task

    def send(self, record: dict[str, Any]) -> None:
        """Send a record."""
        self._write(json.dumps(record).encode() + b"\n")

    def call(self, function: str, arguments: dict[str, Any]) -> Any:
        """Call a function of the host and return its value. Raises ToolError."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                "tools can be called in the program's own process only: use threads, or gather()"
            )
        try:
            written = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{function}(): the arguments have to be values of JSON ({error})") from None
        if len(written) > self._most_bytes:
            raise ValueError(f"{function}(): the arguments have more than {self._most_bytes:,} bytes of JSON")
        with self._changed:
            self._number += 1
            number = self._number
        record = f'{{"call": {number}, "function": {json.dumps(function)}, "arguments": {written}}}\n'
        self._write(record.encode())
        reply = self._reply(number)
        if "error" in reply:
            raise ToolError(reply["error"])
        if "text" in reply:
            text = Text(reply["text"])
            text.value = reply.get("value")
            return text
        return reply["value"]

    def _reply(self, number: int) -> dict[str, Any]:
        with self._changed:
            while number not in self._replies:
                if self._reading:
                    self._changed.wait()
                    continue
                self._reading = True
                self._changed.release()
                try:
                    reply = self._read()
                finally:
                    self._changed.acquire()
                    self._reading = False
                    self._changed.notify_all()
                self._replies[reply["call"]] = reply
            return self._replies.pop(number)

    def _read(self) -> dict[str, Any]:
        parts = []
        while b"\n" not in self._unread:
            parts.append(self._unread)
            self._unread = b""
            try:
                self._unread = os.read(self._descriptor, 1 << 20)
            finally:
                if not self._unread:  # interrupted: keep what has come
                    self._unread = b"".join(parts)
                    parts = []
            if not self._unread:
                os._exit(2)  # nobody is there any more
        head, _, rest = self._unread.partition(b"\n")
        self._unread = rest
        record: dict[str, Any] = json.loads(b"".join([*parts, head]))
        return record

    def _write(self, data: bytes) -> None:
        with self._sending:
            unsent = memoryview(data)
            while unsent:
                unsent = unsent[os.write(self._descriptor, unsent) :]


# -- the names that a program has besides those of Python


class RemoteTool:
    """One tool as a function."""

    def __init__(self, line: Line, name: str, parameters: list[tuple[str, str, bool]], more: bool) -> None:
        self.__name__ = self.__qualname__ = name
        self._line = line
        self._keys = {own: key for own, key, _ in parameters}
        self._required = [own for own, _, required in parameters if required]
        self._more = more

    def __call__(self, *positional: Any, **given: Any) -> Any:
        given = {name: value for name, value in given.items() if value is not ...}
        unknown = [] if self._more else [name for name in given if name not in self._keys]
        missing = [name for name in self._required if name not in given]
        if positional:
            raise TypeError(f"{self.__name__}() takes its arguments by name: {self._takes()}")
        if unknown:
            raise TypeError(f"{self.__name__}() has no argument {unknown[0]!r}; it takes {self._takes()}")
        if missing:
            raise TypeError(f"{self.__name__}() needs the argument {missing[0]!r}; it takes {self._takes()}")
        return self._line.call(self.__name__, {self._keys.get(n, n): value for n, value in given.items()})

    def _takes(self) -> str:
        names = [name if name in self._required else f"{name} (optional)" for name in self._keys]
        return ", ".join(names) or "none"

    def __repr__(self) -> str:
        return f"<tool {self.__name__}>"


class Namespace:
    """The tools of one server."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        import difflib

        known = [each for each in vars(self) if each != "__name__"]
        near = difflib.get_close_matches(name, known, 3) or known[:10]
        more = ", ..." if len(near) < len(known) else ""
        raise AttributeError(f"{self.__name__} has no tool {name!r}; it has {', '.join(near)}{more}")

    def __repr__(self) -> str:
        return f"<tools of {self.__name__}>"


class Printed(str):
    """A text that has been printed: as the value of a last expression it is not shown again."""


def gather(*calls: Any) -> list[Any]:
    """Call functions without arguments side by side, and return their results in order."""
    if len(calls) == 1 and not callable(calls[0]):
        calls = tuple(calls[0])
    if not all(map(callable, calls)):
        raise TypeError("gather() takes functions: gather(lambda: tool(a=1), lambda: tool(a=2))")
    results: list[Any] = [None] * len(calls)
    errors: dict[int, BaseException] = {}
    numbers = iter(range(len(calls)))

    def work() -> None:
        for number in numbers:
            try:
                results[number] = calls[number]()
            except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that called
                errors[number] = error

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_MOST_THREADS, len(calls)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return results


def names_of(line: Line, table: list[Any], types: list[str]) -> dict[str, Any]:
    """Return the names that a program has, besides those of Python.

    The types of objects are `dict` here, so that code may use them as the stubs do.
    """

    def ask_parent(question: str, options: list[str] | None = None) -> str:
        answer: str = line.call("ask_parent", {"question": question, "options": options})
        return answer

    def search_tools(query: str) -> Printed:
        found = Printed(line.call("search_tools", {"about": query}))
        print(found)
        return found

    def help(*about: Any) -> None:
        if about and not isinstance(about[0], (RemoteTool, Namespace, str)):
            builtins.help(*about)
        else:
            name = getattr(about[0], "__name__", about[0]) if about else ""
            print(line.call("help", {"about": name}))

    own = (Text, ToolError, ask_parent, gather, help, search_tools)
    names: dict[str, Any] = dict.fromkeys(types, dict)
    for each in own:
        each.__qualname__ = each.__name__  # as errors name it
        names[each.__name__] = each
    for space, name, is_flat, parameters, more in table:
        if not isinstance(names.get(space), Namespace):
            names[space] = Namespace(space)
        tool = RemoteTool(line, f"{space}.{name}", parameters, more)
        vars(names[space])[name] = tool
        if is_flat:
            names.setdefault(name, tool)
    return names


# -- the course of a program


def _calls_run(tree: Any) -> bool:
    """Whether the code defines `run()`, without arguments, and leaves it to us to call it."""
    definitions = ("FunctionDef", "AsyncFunctionDef")
    found = [node for node in tree.body if type(node).__name__ in definitions and node.name == "run"]
    if not found:
        return False
    given = found[-1].args
    needed: int = (
        len(given.posonlyargs) + len(given.args) - len(given.defaults) + given.kw_defaults.count(None)
    )
    todo = [node for node in tree.body if type(node).__name__ not in (*definitions, "ClassDef")]
    while todo:
        node = todo.pop()
        if type(node).__name__ == "Name" and node.id == "run":
            return False
        for value in vars(node).values():
            todo += [
                each for each in (value if isinstance(value, list) else [value]) if hasattr(each, "_fields")
            ]
    return needed == 0


def _with_value(tree: Any) -> None:
    """Keep the value of a last expression, under a name that no code has."""
    if tree.body and type(tree.body[-1]).__name__ == "Expr":
        last = tree.body[-1]
        place = {field: getattr(last, field) for field in last._attributes}
        target = _ast.Name(id=" value", ctx=_ast.Store(), **place)
        tree.body[-1] = _ast.Assign(targets=[target], value=last.value, **place)


def _run(source: str, names: dict[str, Any]) -> tuple[int, int]:
    """Run the code; return how it ended, as the record says it, and the exit code."""
    flags = _TOP_LEVEL_AWAIT | _FUTURE_ANNOTATIONS
    try:
        tree: Any = compile(source, FILE, "exec", flags | _TREE, dont_inherit=True)
        calls_run = _calls_run(tree)
        _with_value(tree)
        code = compile(tree, FILE, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        _print_error(error)
        print("Nothing was run.", file=sys.stderr)
        return 1, 1
    try:
        _keep_source(source)
        _execute(code, calls_run, names)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
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
    end, exit_code = _run(task["code"], names)
    line.send({"end": end})
    sys.exit(exit_code)
