"""The tools of a run's MCP servers as functions of a Python program: names, parameters, stubs. Pure.

One table feeds the text that the model reads, the checks before a program runs, and the calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from subagent_server.domain.errors import RunRefused, shorten
from subagent_server.toolkit.code_mode.names import RESERVED, STUB_NAMES, TOOL_NAME, python_name
from subagent_server.toolkit.code_mode.stubs import Parameter, ServerTool, Stub, StubWriter


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
    def parameters(self) -> Sequence[Parameter]:
        """The parameters, each with the key that the server knows it by."""
        return self.stub.parameters


@dataclass(frozen=True)
class Catalogue:
    """The functions of a program. `flat` has those that can be called without their namespace as well."""

    functions: Sequence[ToolFunction]
    flat: Mapping[str, ToolFunction]

    def text(self, budget: int) -> str:
        """Return what the model reads: the stubs, or within fewer characters an index of names."""
        return "\n\n".join(f"# {each.namespace}\n{each.stub.text}" for each in self.functions)


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
    writers = {server: StubWriter() for server in namespaces}
    known: dict[tuple[str, str], ServerTool] = {}
    for tool in tools:
        name = python_name(tool.name, "tool", STUB_NAMES)
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
