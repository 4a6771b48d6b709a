"""The part of this package that runs inside a program's own interpreter, around its code.

Any Python since 3.9 runs it, with the standard library alone. It is passed to the interpreter as text
(`execution.py`), because a box does not show this package, and is never imported here. It imports little,
because every program waits for it.

Records on the socket to the host are lines of JSON:

    {"ready": true}                                           the first record, before this module is there
    {"call": 1, "function": "github.get", "arguments": {}}    a call, answered by its number
    {"end": 0}                                                0 well, 1 it raised, 2 out of memory
    {"end": 0, "value": {}}                                   what the function of a flow has returned
    {"end": 1, "why": "ValueError: no", "failed": null}       an error has ended it; `failed` is that of a run
    {"fault": "..."}                                          this module has failed; the exit code is 3

The host (`execution.Channel`) trusts them no more than the code itself, which can write anything here.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import linecache
import os
import signal
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FILE = "program.py"
_OWN = "<code mode>"
_MOST_THREADS = 32
_MOST_AT_ONCE = 256
_FUTURE_ANNOTATIONS = 0x1000000
_MOST_RESULT = 4_000_000
_MOST_DEPTH = 190  # the host reads no record that is nested more than 200 deep
_MOST_WHY = 4_000
_MOST_LOGGED = 100_000


class ToolError(Exception):
    """A tool has failed; the text says why."""

    __module__ = "__main__"  # so that a traceback names it as the code does


class WrongCall(SyntaxError):
    """A call of a tool that cannot go well, found before the code runs."""

    __module__ = "__main__"


class RunFailed(Exception):
    """A run of an agent has failed: `code` says how, `view` is what its parent sees of it."""

    __module__ = "subagent"

    def __init__(self, message: str, code: str, view: dict[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.view = view
        self.run_id = view.get("runId")


class Text(str):
    """The text of a result. `json()` is its value; `run_id` is the run of an agent that gave it."""

    value: Any = None
    run_id: str | None = None

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
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Close the copy of a child, once: a child of that may have another file at its number."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            os.close(descriptor)

    def task(self) -> dict[str, Any]:
        """Return the task of the program."""
        task = self._read()
        self._most_bytes = task["mostBytes"]
        return task

    def send(self, record: dict[str, Any]) -> None:
        """Send a record. A child that goes to the end of the code as well has no socket for it."""
        if os.getpid() == self._owner:
            self._write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def call(self, function: str, arguments: dict[str, Any]) -> Any:
        """Call a function of the host and return its value. Raises ToolError."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                "tools can be called in the program's own process only: use threads, or gather()"
            )
        written = _as_json(arguments, f"{function.lstrip('@')}(): the arguments", self._most_bytes)
        with self._changed:
            self._number += 1
            number = self._number
        head = f'{{"call": {number}, "function": {json.dumps(function)}, "arguments": '
        self._write(head.encode() + written + b"}\n")
        reply = self._reply(number)
        if "failed" in reply:
            raise RunFailed(reply["error"], reply["failed"], reply["view"])
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


def _as_json(value: Any, what: str, most: int) -> bytes:
    """Return a value as JSON; half surrogate pairs, as names of files have them, become question marks.

    Raises:
        TypeError, ValueError, RecursionError: it is no value of JSON, or has more than `most` bytes.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_path_as_text)
        written = text.encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"{what} have to be values of JSON ({error})") from None
    if len(written) > most:
        raise ValueError(f"{what} have more than {most:,} bytes of JSON")
    if _is_deeper(value, _MOST_DEPTH):
        raise ValueError(f"{what} are nested more than {_MOST_DEPTH} deep")
    return written


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested deeper than so many levels. `json` has read the value: it ends."""
    if not isinstance(value, (dict, list, tuple)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return most == 0 or any(_is_deeper(each, most - 1) for each in inner)


def _path_as_text(value: Any) -> str:
    if isinstance(value, os.PathLike):  # programs find files by `pathlib`
        return os.fsdecode(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


# -- the names that a program has besides those of Python


class RemoteTool:
    """One tool as a function."""

    def __init__(self, line: Line, name: str, parameters: list[tuple[str, str, bool]], more: bool) -> None:
        self.__name__ = self.__qualname__ = name
        self._line = line
        self._keys = {own: key for own, key, _ in parameters}
        self._required = [own for own, _, required in parameters if required]
        self._more = more

    def __call__(self, /, *positional: Any, **arguments: Any) -> Any:
        arguments = {name: value for name, value in arguments.items() if value is not ...}
        self.check(bool(positional), arguments)
        return self._line.call(self.__name__, {self._keys.get(n, n): value for n, value in arguments.items()})

    def check(self, positional: bool, arguments: Any) -> None:
        """Raise TypeError unless a call may have these names of arguments; None among them: more follow."""
        unknown = [] if self._more else [name for name in arguments if name and name not in self._keys]
        missing = [] if None in arguments else [name for name in self._required if name not in arguments]
        if positional:
            wrong = "takes its arguments by name"
        elif unknown:
            wrong = f"has no argument {unknown[0]!r}"
        elif missing:
            wrong = f"needs the argument {missing[0]!r}"
        else:
            return
        names = [name if name in self._required else f"{name} (optional)" for name in self._keys]
        raise TypeError(f"{self.__name__}() {wrong}; it takes {', '.join(names) or 'none'}")

    def __repr__(self) -> str:
        return f"<tool {self.__name__}>"


class Namespace:
    """The tools of one server."""

    kind = "tool"

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        import difflib

        known = [each for each in vars(self) if each != "__name__"]
        near = difflib.get_close_matches(name, known, 3) or known[:10]
        more = ", ..." if len(near) < len(known) else ""
        have = f"{', '.join(near)}{more}" if known else "none"
        raise AttributeError(f"{self.__name__} has no {type(self).kind} {name!r}; it has {have}")

    def __repr__(self) -> str:
        return f"<{type(self).kind}s of {self.__name__}>"


class Agents(Namespace):
    """The agents that the run may start."""

    kind = "agent"


class Printed(str):
    """A text that has been printed: as the value of a last expression it is not shown again."""


class Call:
    """One call of an agent. Nothing happens before it is started, by `start()`, `result()` or `gather`."""

    def __init__(self, line: Line, agent: str, arguments: dict[str, Any], on_question: Any) -> None:
        self._line = line
        self._agent = agent
        self._arguments = arguments
        self._on_question = on_question
        self._number: int | None = None
        self._started = threading.Lock()
        self._run_id: str | None = None
        self._unstarted: RunFailed | None = None

    @property
    def run_id(self) -> str | None:
        """The id of the run, None before it is started. Raises RunFailed if a dry run has left it out."""
        if self._unstarted is not None:
            raise self._unstarted
        return self._run_id

    def plan(self) -> None:
        """Have the host check the call and compute its identity: equal calls are distinguished by order."""
        if self._number is None:
            self._number = self._line.call("@plan", {"agent": self._agent, "arguments": self._arguments})

    def start(self) -> Call:
        """Start the run, or find the one that is on record; wait while too many runs are at work.

        A dry run starts none that would be new, and ends where something of that run is needed.
        """
        with self._started:
            self.plan()
            if self._run_id is None and self._unstarted is None:
                try:
                    self._run_id = self._line.call("@start", {"call": self._number})
                except RunFailed as error:
                    if _is_fatal(error):
                        raise
                    self._unstarted = error
        return self

    def result(self) -> Any:
        """Wait for the end of the run and return its result. Raises RunFailed."""
        run, asks = {"runId": self.start().run_id}, self._on_question is not None
        while "question" in (reply := self._line.call("@result", {**run, "asks": asks})):
            answer = _finish(self._on_question(reply["question"], reply["options"]))
            arguments = {"messageId": reply["messageId"], "answer": None if answer is None else str(answer)}
            self._line.call("@answer", {**run, **arguments})
        if "text" not in reply:
            return reply["value"]
        text = Text(reply["text"])
        text.run_id = self.run_id
        return text

    __call__ = result

    @property
    def status(self) -> str:
        """The status of the run, such as `running`; `planned` before it is started."""
        status: str = "planned"
        if self.run_id is not None:
            status = self._line.call("@status", {"runId": self.run_id})
        return status

    def stop(self) -> None:
        """Stop the run."""
        if self.run_id is not None:
            self._line.call("@stop", {"runId": self.run_id})

    def __repr__(self) -> str:
        return f"<call of {self._agent}: {self._run_id or 'not started'}>"


class Agent:
    """An agent that the run may start, as a function. The host knows which arguments it takes."""

    def __init__(self, line: Line, name: str) -> None:
        self.__name__ = name
        self._line = line

    def call(self, /, *positional: Any, on_question: Any = None, **arguments: Any) -> Call:
        """Describe a call."""
        if positional:
            raise TypeError(f"agents.{self.__name__}() takes its arguments by name, such as prompt=...")
        return Call(self._line, self.__name__, arguments, on_question)

    def start(self, /, *positional: Any, **arguments: Any) -> Call:
        """Start a call and return it."""
        return self.call(*positional, **arguments).start()

    def __call__(self, /, *positional: Any, **arguments: Any) -> Any:
        return self.call(*positional, **arguments).result()

    def __repr__(self) -> str:
        return f"<agent {self.__name__}>"


def gather(*calls: Any, limit: int | None = None, return_exceptions: bool = False) -> list[Any]:
    """Make calls of agents, or call functions without arguments, side by side; return the results in order.

    At most `limit` are under way at once. After a failure no other is begun; those under way end, and then
    the first error in the order of the arguments is raised, or is one of the results.
    """
    calls = _calls_of(calls, return_exceptions)
    if limit is None:
        limit = 8 if any(isinstance(call, Call) for call in calls) else _MOST_THREADS
    if type(limit) is not int or limit < 1:
        raise ValueError("gather(): limit is how many calls may be under way at once, at least 1")
    results: list[Any] = [None] * len(calls)
    errors: dict[int, BaseException] = {}
    numbers = iter(range(len(calls)))

    def work() -> None:
        for number in numbers:
            try:
                results[number] = calls[number]()
            except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that called
                results[number] = errors[number] = error
            if not return_exceptions and any(map(_is_fatal, list(errors.values()))):
                return

    _side_by_side(work, min(limit, _MOST_AT_ONCE, len(calls)))
    if errors and not return_exceptions:
        raise errors[min(errors)]
    return results


def _side_by_side(work: Any, many: int) -> None:
    """Do the work in so many threads; if no other can be started, those begun and this one do it all."""
    threads = [threading.Thread(target=work, daemon=True) for _ in range(many)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # gathers in gathers have taken all threads that a box has room for
        work()
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def _calls_of(arguments: tuple[Any, ...], with_faults: bool) -> tuple[Any, ...]:
    """Return the arguments of `gather`, checked; calls of agents get their identities in this order.

    A call that cannot be made raises here, before any other begins, or, `with_faults`, when its turn comes.
    """
    calls = tuple(arguments[0]) if len(arguments) == 1 and hasattr(arguments[0], "__iter__") else arguments
    if not all(map(callable, calls)):
        raise TypeError("gather() takes calls: gather(agents.a.call(...), lambda: tool(a=1))")
    for call in calls:
        if isinstance(call, Call):
            try:
                call.plan()
            except ToolError:
                if not with_faults:
                    raise
    return calls


def _is_fatal(error: BaseException) -> bool:
    """Whether no other call is begun after this; a dry run lists them all."""
    return getattr(error, "code", None) != "dry_run"


def module_of(line: Line, names: dict[str, Any], agents: list[str]) -> Any:
    """Return the module `subagent`: the agents that may be started, and what programs of agents need."""

    def ask(question: str, options: list[str] | None = None) -> str | None:
        answer: str | None = line.call("@ask", {"question": question, "options": options})
        return answer

    def log(*words: Any) -> None:
        line.call("@log", {"text": " ".join(map(str, words))[:_MOST_LOGGED]})

    def phase(name: str) -> None:
        line.call("@phase", {"name": str(name)})

    def merge(run: Any) -> str:
        named = getattr(run, "run_id", None) or run
        if not isinstance(named, str):
            raise TypeError("merge() takes a call that was started, a text that it gave, or the id of a run")
        done: str = line.call("@merge", {"runId": named})
        return done

    def now() -> Any:
        import datetime

        return datetime.datetime.fromisoformat(line.call("@now", {}).replace("Z", "+00:00"))

    def random() -> float:
        number: float = line.call("@random", {})
        return number

    module: Any = type(sys)("subagent")
    vars(module).update(names)
    own = (ask, log, phase, merge, now, random, gather, RunFailed, ToolError, Text)
    vars(module).update({each.__name__: each for each in own})
    module.agents = Agents("agents")
    vars(module.agents).update({name: Agent(line, name) for name in agents})
    return module


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
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    defined = {node.name: node for node in tree.body if isinstance(node, (*functions, ast.ClassDef))}
    run = defined.get("run")
    if not isinstance(run, functions):
        return False
    args = run.args
    needed: int = len(args.posonlyargs) + len(args.args) - len(args.defaults) + args.kw_defaults.count(None)
    # the code calls it if a function that the code calls does: a second call would do all of its work again
    named: set[str] = set()
    reached = [node for node in tree.body if not isinstance(node, (*functions, ast.ClassDef))]
    for node in reached:
        new = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - named
        named |= new
        reached += [defined[name] for name in new if name in defined]
    return needed == 0 and "run" not in named


def _check_calls(tree: Any, names: dict[str, Any]) -> None:
    """Find calls of tools that cannot succeed before any of the code runs: the others may have effects.

    A name that the code itself binds, anywhere in it, is not checked.

    Raises:
        WrongCall: there is no such tool, or it does not take these arguments.
    """
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif not isinstance(node, ast.keyword):  # definitions, imports, parameters and patterns
            bound = (getattr(node, field, None) for field in ("name", "asname", "arg", "rest"))
            own.update(name.partition(".")[0] for name in bound if isinstance(name, str))
    tools = {} if "*" in own else {name: each for name, each in names.items() if name not in own}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        try:
            tool = _named_tool(call.func, tools)
            if isinstance(tool, RemoteTool):
                positional = any(not isinstance(each, ast.Starred) for each in call.args)
                tool.check(positional, [each.arg for each in call.keywords])
        except (AttributeError, TypeError) as error:
            line = linecache.getline(FILE, call.lineno)
            raise WrongCall(str(error), (FILE, call.lineno, call.col_offset + 1, line)) from None


def _named_tool(function: Any, tools: dict[str, Any]) -> Any:
    """Return what a part of the code names. Raises AttributeError: a server has no such tool."""
    if isinstance(function, ast.Name):
        return tools.get(function.id)
    space = _named_tool(function.value, tools) if isinstance(function, ast.Attribute) else None
    return getattr(space, function.attr) if isinstance(space, Namespace) else None


def _with_value(tree: Any) -> None:
    """Keep the value of a last expression, under a name that no code has."""
    if tree.body and type(tree.body[-1]).__name__ == "Expr":
        last = tree.body[-1]
        position = {field: getattr(last, field) for field in last._attributes}
        target = ast.Name(id=" value", ctx=ast.Store(), **position)
        tree.body[-1] = ast.Assign(targets=[target], value=last.value, **position)


def _run(source: str, names: dict[str, Any], flow: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
    """Run the code; return the record of its end and the exit code. `flow` are the arguments of a flow."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | _FUTURE_ANNOTATIONS
    lines = io.StringIO(source, newline=None).readlines()  # `splitlines` knows more ends of lines than Python
    linecache.cache[FILE] = (len(source), None, lines, FILE)  # tracebacks show them, and there is no file
    try:
        tree: Any = compile(source, FILE, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        calls_run = flow is None and _calls_run(tree)
        if flow is None:
            _check_calls(tree, names)
            _with_value(tree)
        code = compile(tree, FILE, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        why = _printed(error)
        print("Nothing was run.", file=sys.stderr)
        return {"end": 1, "why": why}, 1
    try:
        space = _execute(code, names, "__main__" if flow is None else "flow")
        end = _returned(space["run"], flow) if flow is not None else {"end": 0}
        if calls_run:
            _show(_finish(space["run"]()))
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except SystemExit as error:
        return _exit_code(error.code)
    except MemoryError as error:
        _printed(error)
        return {"end": 2}, 2
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        failed = _short(str(error.code)) if isinstance(error, RunFailed) else None
        return {"end": 1, "why": _printed(error), "failed": failed}, 1
    return end, 0


def _returned(run: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the record of the end of a flow. Raises TypeError, ValueError: no JSON, or too much of it."""
    value = _finish(run(**arguments))
    return {"end": 0, "value": json.loads(_as_json(value, "run(): its results", _MOST_RESULT))}


def _execute(code: Any, names: dict[str, Any], module: str) -> dict[str, Any]:
    """Run the code as this module: a flow is imported, and `if __name__ == "__main__":` calls nothing."""
    space = vars(sys.modules.setdefault(module, sys.modules["__main__"]))
    for name in [name for name in space if name not in ("__name__", "__builtins__")]:
        del space[name]
    space.update({**names, "__file__": FILE, "__name__": module})
    _finish(eval(code, space))
    _show(space.pop(" value", None))
    return space


def _finish(value: Any) -> Any:
    """Return the value of a coroutine, or `value` itself."""
    if not hasattr(value, "send") or not hasattr(value, "cr_code"):
        return value
    import asyncio

    return asyncio.run(value)


def _show(value: Any) -> None:
    if value is not None and not isinstance(value, Printed):
        print(value if isinstance(value, str) else repr(value))


def _exit_code(code: Any) -> tuple[dict[str, Any], int]:
    if code is None:
        return {"end": 0}, 0
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        return {"end": 1, "why": _short(str(code))}, 1
    return {"end": int(code != 0)}, code & 0xFF


def _printed(error: BaseException) -> str:
    """Print a traceback without the frames of this file; return the error in short."""
    import traceback

    shown = traceback.TracebackException.from_exception(error)
    todo = [shown]
    while todo:
        each = todo.pop()
        each.stack[:] = [frame for frame in each.stack if frame.filename != _OWN]
        todo += [other for other in (each.__cause__, each.__context__) if other is not None]
    print("".join(shown.format()), end="", file=sys.stderr)
    return _short(f"{type(error).__name__}: {shown}" if str(shown) else type(error).__name__)


def _short(text: str) -> str:
    return text[:_MOST_WHY].encode("utf-8", "replace").decode()


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
        names = names_of(line, task["functions"], task["types"])
        sys.modules["subagent"] = module_of(line, names, task["agents"])
    except Exception as error:  # noqa: BLE001 - a fault of this file, which ends the run
        line.send({"fault": f"{type(error).__name__}: {error}"})
        os._exit(3)
    end, exit_code = _run(task["code"], names, task["flow"])
    line.send(end)
    sys.exit(exit_code)
