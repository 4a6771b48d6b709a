"""The tools of a run's MCP servers as functions of a Python program: names, stubs, catalogue. Pure."""

import json
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.extensions.code_mode.python_text import (
    RESERVED,
    STUB_NAMES,
    as_comment,
    as_docstring,
    namespaces_of,
    python_name,
    type_name,
)
from subagent_server.extensions.code_mode.python_types import PythonType, TypeWriter
from subagent_server.run.agent_definition import CODE_TOOL_NAME
from subagent_server.run.errors import RunRefused, choices, shorten
from subagent_server.run.states import cut
from subagent_server.toolbox.mcp.input_schemas import (
    InputSchema,
    input_schema,
    repaired,
    without_dead_references,
)

MAX_SCHEMA_CHARACTERS = 200_000
MAX_STUB_CHARACTERS = 60_000
_LONGEST_LINE = 100
_SHORT = 200
_OBJECT = re.compile(r"^(?:class )?(\w+)(?:\(TypedDict\)| = TypedDict\()", re.MULTILINE)
_TEXT = PythonType(("Text",))


@dataclass(frozen=True)
class ServerTool:
    """A tool of an MCP server, as `tools/list` returned it. A schema may be anything."""

    server: str
    name: str
    description: str = ""
    input_schema: Any = None
    output_schema: Any = None


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: its name there, and the key by which the tool knows it."""

    name: str
    key: str
    required: bool


@dataclass(frozen=True)
class Stub:
    """A function without its body. `takes_more`: other keywords are arguments, too.

    `unwraps`: the structured result is an object with the one key `result`, and its value is returned.
    """

    text: str
    parameters: Sequence[Parameter] = ()
    takes_more: bool = False
    unwraps: bool = False


class StubWriter:
    """Writes the stubs of one namespace, in which no two types or functions have the same name."""

    def __init__(self, functions: Collection[str]) -> None:
        self._taken = set(functions)

    def stub(self, name: str, tool: ServerTool) -> Stub:
        """Return the stub of a tool that is called `name` in its namespace."""
        before = set(self._taken)
        try:
            schemas = json.dumps([tool.input_schema, tool.output_schema], default=str)
            stub = self._typed_stub(name, tool) if len(schemas) <= MAX_SCHEMA_CHARACTERS else None
        except RecursionError:
            stub = None
        if stub is not None and len(stub.text) <= MAX_STUB_CHARACTERS:
            return stub
        self._taken = before
        head = f"def {name}(**arguments: Any) -> Any:  # the schema is too large for types\n"
        return Stub(head + as_docstring(tool.description[:_SHORT]), takes_more=True)

    def _typed_stub(self, name: str, tool: ServerTool) -> Stub:
        schema = input_schema(tool.input_schema)
        writer = TypeWriter(schema.schema, self._taken)
        parameters = _parameters(schema)
        properties = (schema.schema.get("properties") or {}).values()
        lines = [
            _line(parameter, value, writer, type_name(name, parameter.key))
            for parameter, value in zip(parameters, properties, strict=True)
        ]
        more = _more(schema.schema, writer, type_name(name, "Others"))
        if more is not None:
            others = python_name("others", "argument", {parameter.name for parameter in parameters})
            lines.append((f"**{others}: {more.annotation()}", ""))
        root, unwraps = _result_schema(tool.output_schema)
        reader = TypeWriter(root, self._taken, of_results=True)
        wanted = root["properties"]["result"] if unwraps else root
        result = (
            reader.type_of(wanted, type_name(name, "Result")) if tool.output_schema is not None else _TEXT
        )
        head = _signature(name, lines, result.annotation())
        text = "".join([*writer.definitions, *reader.definitions, head, _rest(tool, schema, result.reasons)])
        return Stub(text, parameters, more is not None, unwraps)


def _parameters(schema: InputSchema) -> list[Parameter]:
    """Return the parameters of a tool in their order. A key that is a name of Python keeps it."""
    shown = schema.schema.get("properties") or {}
    required = set(schema.schema.get("required") or ())
    keys = [schema.names.get(key, key) for key in shown]
    plain = {key for key in keys if python_name(key, "argument") == key}
    taken = set(plain)
    parameters: list[Parameter] = []
    for shown_key, key in zip(shown, keys, strict=True):
        name = key if key in plain else python_name(key, "argument", taken)
        taken.add(name)
        parameters.append(Parameter(name, key, shown_key in required))
    return parameters


def _line(parameter: Parameter, schema: Any, writer: TypeWriter, name: str) -> tuple[str, str]:
    """Return a parameter of a signature, and the comment behind it."""
    found = writer.type_of(schema, name)
    value = schema.get("default") if isinstance(schema, dict) else None
    shows_default = isinstance(value, str | int | float) and found.takes(value) and len(repr(value)) <= _SHORT
    default = "" if parameter.required else f" = {value!r}" if shows_default else " = ..."
    about = writer.comment(schema, found, shows_default=shows_default and not parameter.required)
    return f"{parameter.name}: {found.annotation()}{default}", about


def _more(schema: dict[str, Any], writer: TypeWriter, name: str) -> PythonType | None:
    """Return the type of arguments that the schema does not name, or None if it allows none."""
    others = schema.get("additionalProperties")
    is_closed = others is False or (others is None and "properties" in schema)
    return None if is_closed and not schema.get("patternProperties") else writer.others(schema, name)


def _result_schema(schema: Any) -> tuple[dict[str, Any], bool]:
    """Return the schema of structured results, and whether `result` is its only key."""
    whole = repaired(schema) if isinstance(schema, dict) else {}
    root = without_dead_references(whole, whole)
    return root, list(root.get("properties", ())) == ["result"] and root.get("required") == ["result"]


def _signature(name: str, lines: Sequence[tuple[str, str]], result: str) -> str:
    """Return the first line of a function, or more lines if parameters have comments."""
    star = "" if not lines or lines[0][0].startswith("**") else "*, "
    line = f"def {name}({star}{', '.join(parameter for parameter, _ in lines)}) -> {result}:\n"
    if not any(about for _, about in lines) and len(line) <= _LONGEST_LINE:
        return line
    each = "".join(f"    {parameter},{about}\n" for parameter, about in lines)
    return f"def {name}({star.rstrip()}\n{each}) -> {result}:\n"


def _rest(tool: ServerTool, schema: InputSchema, reasons: Sequence[str]) -> str:
    """Return the body of a function: what its signature does not show."""
    parts = [tool.description.strip()]
    if schema.rule:
        parts.append(f"The arguments must also satisfy this JSON Schema: {schema.rule}")
    parts += [f"Result: {reason}" for reason in reasons]
    return as_docstring("\n\n".join(filter(None, parts)))


# -- the catalogue: one table feeds the text that the model reads, and the calls


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
        names = [each.name if each.required else f"{each.name}=..." for each in self.stub.parameters]
        return f"{self.qualified}({', '.join([*names, *(['...'] if self.stub.takes_more else [])])})"

    @property
    def summary(self) -> str:
        """The beginning of its description."""
        first = self.tool.description.strip().partition("\n")[0]
        return cut(first, _SUMMARY_CHARACTERS)


@dataclass(frozen=True)
class Catalogue:
    """The functions of a program. `flat` has those that can be called without their namespace as well."""

    functions: Sequence[ToolFunction]
    flat: Mapping[str, ToolFunction]

    @property
    def table(self) -> list[Any]:
        """What a program needs to make its functions (`inside.names_of`)."""
        return [
            [
                each.namespace,
                each.name,
                self.flat.get(each.name) is each,
                [[parameter.name, parameter.key, parameter.required] for parameter in each.stub.parameters],
                each.stub.takes_more,
            ]
            for each in self.functions
        ]

    @property
    def types(self) -> list[str]:
        """The names of the types of objects in the stubs."""
        return sorted({name for each in self.functions for name in _OBJECT.findall(each.stub.text)})

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
        by_namespace = self._by_namespace()
        every = {**self.flat, **{each.qualified: each for each in self.functions}}
        if not name:
            return self._index()
        if name in by_namespace:
            return _listed(by_namespace[name], _MOST_LISTED)
        if name in every:
            found = every[name]
            return f"# {found.namespace}\n{found.stub.text}"
        known = choices("functions and servers", name, self.names)
        return f"There is no function or server {shorten(name)}: {known}."

    def search(self, query: str) -> str:
        """Return the functions that have words of the query in name or description, the best first."""
        wanted = list(dict.fromkeys(re.findall(r"[^\W_]+", query[:_LONGEST_QUERY].lower())))
        scored = [(_score(each, wanted), each) for each in self.functions]
        found = [each for score, each in sorted(scored, key=lambda pair: -pair[0]) if score]
        if found:
            return _listed(found, _MOST_FOUND)
        return f"No function has a word of {shorten(query)}.\n{self._index()}"

    def _by_namespace(self) -> dict[str, list[ToolFunction]]:
        found: dict[str, list[ToolFunction]] = {}
        for each in self.functions:
            found.setdefault(each.namespace, []).append(each)
        return found

    def _index(self) -> str:
        """Return the servers, each with the beginning of its names."""
        by_namespace = self._by_namespace()
        if not self.functions:
            return "# There are no functions: this run has no MCP servers."
        first = self.functions[0]
        lines = [
            f"# {len(self.functions)} functions. In a program, help({first.qualified}) prints one whole,",
            f'# help({first.namespace}) lists those of a server, search_tools("words") finds some.',
        ]
        share = _INDEX_CHARACTERS // min(len(by_namespace), _MOST_SERVERS)
        for namespace, functions in list(by_namespace.items())[:_MOST_SERVERS]:
            names = textwrap.shorten(", ".join(each.name for each in functions), share, placeholder=" ...")
            lines.append(f"# {namespace} ({len(functions)}): {names}")
        if len(by_namespace) > _MOST_SERVERS:
            lines.append(f"# and {len(by_namespace) - _MOST_SERVERS} more servers")
        return "\n".join(lines)


def _listed(functions: Sequence[ToolFunction], most: int) -> str:
    lines = [f"{each.call}{as_comment([each.summary])}" for each in functions[:most]]
    if len(functions) > most:
        lines.append(f"and {len(functions) - most} more: search_tools with other words finds them")
    return "\n".join(lines)


def _score(function: ToolFunction, words: Sequence[str]) -> int:
    """Return how well a function fits words: its name counts most."""
    name = function.qualified.lower()
    parameters = " ".join(each.name for each in function.stub.parameters)
    about = f"{name} {function.tool.description} {parameters}".lower()
    return sum(4 * (word in name) + (word in about) for word in words)


def catalogue_of(tools: Sequence[ServerTool]) -> Catalogue:
    """Return the functions for these tools, in their order.

    Raises:
        RunRefused: `config`; two servers or two tools of one server get the same name, or a tool has a name
            that code mode itself needs. The sentence names them and the two ways out.
    """
    namespaces = namespaces_of(tool.server for tool in tools)
    functions = list(_functions(tools, namespaces))
    by_name: dict[str, list[ToolFunction]] = {}
    for each in functions:
        by_name.setdefault(each.name, []).append(each)
    taken = RESERVED | set(namespaces.values())
    flat = {name: same[0] for name, same in by_name.items() if len(same) == 1 and name not in taken}
    return Catalogue(functions, flat)


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
        if tool.name == CODE_TOOL_NAME:
            raise _clash(tool, f"the tool {CODE_TOOL_NAME} has the name of the tool that runs programs")
        yield ToolFunction(namespaces[tool.server], name, tool, writers[tool.server].stub(name, tool))


def _clash(tool: ServerTool, what: str) -> RunRefused:
    return RunRefused(
        "config",
        f"In code mode {what} (server {shorten(tool.server)}).",
        f"Keep {shorten(tool.name)} an ordinary tool with codeMode.excludedTools, "
        f"or leave it out with disabledTools of the server.",
    )
