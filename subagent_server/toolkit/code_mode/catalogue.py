"""The tools of a run's MCP servers as functions of a Python program: names, parameters, stubs. Pure.

One table feeds the text that the model reads, the checks before a program runs, and the calls.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate

from subagent_server.domain.errors import MAX_COMPARED, RunRefused, shorten
from subagent_server.toolkit.code_mode.names import RESERVED, STUB_NAMES, TOOL_NAME, python_name
from subagent_server.toolkit.code_mode.stubs import Parameter, ServerTool, Stub, StubWriter
from subagent_server.toolkit.code_mode.words import comment, shortened

_INDEX_CHARACTERS = 1_000
_MOST_SERVERS = 40
_MOST_LISTED = 200
_MOST_FOUND = 20
_SUMMARY_CHARACTERS = 120
_LONGEST_QUERY = 200


@dataclass(frozen=True)
class ToolFunction:
    """One tool as a function of the program; `namespace` and `name` are its names there."""

    namespace: str
    name: str
    tool: ServerTool
    stub: Stub

    @property
    def qualified(self) -> str:
        """The name with its namespace, as a program calls it."""
        return f"{self.namespace}.{self.name}"

    @property
    def call(self) -> str:
        """A call of it in short: optional arguments have `=...`."""
        names = [each.name if each.required else f"{each.name}=..." for each in self.parameters]
        return f"{self.qualified}({', '.join([*names, *(['...'] if self.stub.takes_more else [])])})"

    @property
    def summary(self) -> str:
        """The beginning of its description."""
        first = self.tool.description.strip().partition("\n")[0]
        return shortened(first, _SUMMARY_CHARACTERS)

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The parameters, each with the key that the server knows it by."""
        return self.stub.parameters


@dataclass(frozen=True)
class Catalogue:
    """The functions of a program. `flat` has those that can be called without their namespace as well."""

    functions: Sequence[ToolFunction]
    flat: Mapping[str, ToolFunction]

    def text(self, budget: int) -> str:
        """Return what the model reads: all stubs, or an index if they have more than `budget` characters."""
        if not self.functions:
            return ""
        parts = [f"# Call each with its server: {self.functions[0].qualified}(...)"]
        for namespace, functions in self._by_namespace().items():
            parts.append(f"# --- {namespace} ---")
            parts += [each.stub.text.rstrip() for each in functions]
        whole = "\n".join(parts)
        return whole if len(whole) <= budget else self._index()

    @property
    def names(self) -> list[str]:
        """The names of all functions, with their servers, and of the servers."""
        return [*(each.qualified for each in self.functions), *self._by_namespace()]

    def help(self, name: str) -> str:
        """Return the stub of a function, or the functions of a server, a line each; of nothing the index."""
        by_namespace, every = self._by_namespace(), self._by_name()
        if not name and self.functions:
            return self._index()
        if name in by_namespace:
            return _listed(by_namespace[name], _MOST_LISTED)
        if name in every:
            found = every[name]
            return f"# {found.namespace}\n{found.stub.text}"
        near = get_close_matches(name[:MAX_COMPARED], self.names, 3, 0.5)
        todo = f"did you mean {' or '.join(near)}?" if near else 'search_tools("words") finds some.'
        return f"There is no function or server {shorten(name)}: {todo}"

    def search(self, query: str) -> str:
        """Return the functions that have words of the query in name or description, the best first."""
        wanted = list(dict.fromkeys(re.findall(r"[^\W_]+", query[:_LONGEST_QUERY].lower())))
        scored = [(sum(_score(each, word) for word in wanted), each) for each in self.functions]
        found = [each for score, each in sorted(scored, key=lambda pair: -pair[0]) if score]
        if found:
            return _listed(found, _MOST_FOUND)
        return f"No function has a word of {shorten(query)}.\n{self._index()}"

    def _by_name(self) -> dict[str, ToolFunction]:
        return {**self.flat, **{each.qualified: each for each in self.functions}}

    def _by_namespace(self) -> dict[str, list[ToolFunction]]:
        found: dict[str, list[ToolFunction]] = {}
        for each in self.functions:
            found.setdefault(each.namespace, []).append(each)
        return found

    def _index(self) -> str:
        """Return the servers, each with the beginning of its names."""
        by_namespace = self._by_namespace()
        first = self.functions[0]
        lines = [
            f"# {len(self.functions)} functions. In a program, help({first.qualified}) prints one whole,",
            f'# help({first.namespace}) lists those of a server, search_tools("words") finds some.',
        ]
        share = _INDEX_CHARACTERS // min(len(by_namespace), _MOST_SERVERS)
        for namespace, functions in list(by_namespace.items())[:_MOST_SERVERS]:
            names = _within(share, [each.name for each in functions])
            lines.append(f"# {namespace} ({len(functions)}): {names}")
        if len(by_namespace) > _MOST_SERVERS:
            lines.append(f"# and {len(by_namespace) - _MOST_SERVERS} more servers")
        return "\n".join(lines)


def _within(characters: int, names: Sequence[str]) -> str:
    """Return the first of the names, as many as have room, at least one."""
    ends = accumulate(len(name) + 2 for name in names)
    shown = max(1, sum(end <= characters for end in ends))
    return ", ".join([*names[:shown], *(["..."] if shown < len(names) else [])])


def _listed(functions: Sequence[ToolFunction], most: int) -> str:
    lines = [f"{each.call}{comment([each.summary])}" for each in functions[:most]]
    if len(functions) > most:
        lines.append(f"and {len(functions) - most} more: search_tools with other words finds them")
    return "\n".join(lines)


def _score(function: ToolFunction, word: str) -> int:
    """Return how well a function fits a word: its name counts most."""
    name = function.name.lower()
    if word in re.split(r"[\W_]+", name):
        return 8
    about = f"{function.tool.description} {' '.join(each.name for each in function.parameters)}".lower()
    places = ((name, 4), (function.namespace.lower(), 2), (about, 1))
    return next((score for text, score in places if word in text), 0)


def catalogue_of(tools: Sequence[ServerTool]) -> Catalogue:
    """Return the functions for these tools, in their order.

    Raises:
        RunRefused: `config`; two servers or two tools of one server get the same name, or a tool has a name
            that code mode itself needs. The sentence names them and the two ways out.
    """
    namespaces = _namespaces(tools)
    functions = list(_functions(tools, namespaces))
    by_name: dict[str, list[ToolFunction]] = {}
    for each in functions:
        by_name.setdefault(each.name, []).append(each)
    taken = RESERVED | set(namespaces.values())
    flat = {name: same[0] for name, same in by_name.items() if len(same) == 1 and name not in taken}
    return Catalogue(functions, flat)


def _namespaces(tools: Sequence[ServerTool]) -> dict[str, str]:
    """Return the namespace of each server."""
    by_namespace: dict[str, str] = {}
    for server in dict.fromkeys(tool.server for tool in tools):
        namespace = python_name(server, "server", RESERVED)
        other = by_namespace.setdefault(namespace, server)
        if other != server:
            raise RunRefused(
                "config",
                f"In code mode the servers {shorten(other)} and {shorten(server)} both become {namespace}.",
                "Rename one of them in mcpServers.",
            )
    return {server: namespace for namespace, server in by_namespace.items()}


def _functions(tools: Sequence[ServerTool], namespaces: Mapping[str, str]) -> Iterator[ToolFunction]:
    names = {id(tool): python_name(tool.name, "tool", STUB_NAMES) for tool in tools}
    writers = {
        server: StubWriter([names[id(tool)] for tool in tools if tool.server == server])
        for server in namespaces
    }
    known: dict[tuple[str, str], ServerTool] = {}
    for tool in tools:
        name = names[id(tool)]
        other = known.setdefault((tool.server, name), tool)
        if other.name == tool.name and other is not tool:
            continue  # listed twice: the first is used, as in the loop
        if other is not tool:
            raise _clash(tool, f"the tools {shorten(other.name)} and {shorten(tool.name)} both become {name}")
        if tool.name == TOOL_NAME:
            raise _clash(tool, f"the tool {TOOL_NAME} has the name of the tool that runs programs")
        yield ToolFunction(namespaces[tool.server], name, tool, writers[tool.server].stub(name, tool))


def _clash(tool: ServerTool, what: str) -> RunRefused:
    return RunRefused(
        "config",
        f"In code mode {what} (server {shorten(tool.server)}).",
        f"Keep {shorten(tool.name)} an ordinary tool with codeMode.excludedTools, "
        f"or leave it out with disabledTools of the server.",
    )
