"""The names that a program has besides those of Python: its tools, and a few functions beside them."""

from __future__ import annotations

import builtins
import threading

from subagent_server.toolkit.code_mode.inside.line import Line, Text, ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_THREADS = 32


class Tool:
    """One tool as a function."""

    def __init__(self, line: Line, name: str, parameters: list[tuple[str, str, bool]], more: bool) -> None:
        self.__name__ = self.__qualname__ = name
        self._line = line
        self._keys = {own: key for own, key, _ in parameters}
        self._required = [own for own, _, required in parameters if required]
        self._more = more

    def __call__(self, *positional: Any, **given: Any) -> Any:
        given = {name: value for name, value in given.items() if value is not ...}
        fault = self.fault(bool(positional), list(given), partial=False)
        if fault is not None:
            raise TypeError(fault)
        return self._line.call(self.__name__, {self._keys.get(n, n): value for n, value in given.items()})

    def fault(self, positional: bool, given: list[str], *, partial: bool) -> str | None:
        """Return why a call with these arguments would be wrong; `partial` if there are more of them."""
        if positional:
            return f"{self.__name__}() takes its arguments by name: {self._takes()}"
        unknown = [] if self._more else [name for name in given if name not in self._keys]
        if unknown:
            return f"{self.__name__}() has no argument {unknown[0]!r}; it takes {self._takes()}"
        missing = [] if partial else [name for name in self._required if name not in given]
        if missing:
            return f"{self.__name__}() needs the argument {missing[0]!r}; it takes {self._takes()}"
        return None

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
        raise AttributeError(unknown_tool(self, name))

    def __repr__(self) -> str:
        return f"<tools of {self.__name__}>"


def unknown_tool(space: Namespace, name: str) -> str:
    import difflib

    known = [each for each in vars(space) if each != "__name__"]
    near = difflib.get_close_matches(name, known, 3) or known[:10]
    return (
        f"{space.__name__} has no tool {name!r}; it has {', '.join(near)}{', ...' * (len(near) < len(known))}"
    )


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
        if about and not isinstance(about[0], (Tool, Namespace, str)):
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
        namespace = names[space]
        tool = Tool(line, f"{space}.{name}", parameters, more)
        vars(namespace)[name] = tool
        if is_flat:
            names.setdefault(name, tool)
    return names
