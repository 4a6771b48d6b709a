"""The text of a tool's function, as the model reads it: types, signature, docstring. Pure."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.toolkit.code_mode.names import python_name, type_name
from subagent_server.toolkit.code_mode.python_types import ANYTHING, PythonType
from subagent_server.toolkit.code_mode.schema_types import TypeWriter
from subagent_server.toolkit.code_mode.words import body
from subagent_server.toolkit.mcp_servers.input_schema import InputSchema, input_schema
from subagent_server.toolkit.mcp_servers.schema_repair import repaired, without_dead_references

MAX_SCHEMA_CHARACTERS = 200_000
MAX_STUB_CHARACTERS = 60_000
_LONGEST_LINE = 100
_SHORT = 200
_OBJECT = re.compile(r"^(?:class )?(\w+)(?:\(TypedDict\)| = TypedDict\()", re.MULTILINE)
_TEXT = PythonType(("Text",))


@dataclass(frozen=True)
class ServerTool:
    """A tool of an MCP server, as `tools/list` gave it. A schema may be anything."""

    server: str
    name: str
    description: str = ""
    input_schema: Any = None
    output_schema: Any = None


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: its name there, its key in the arguments of the tool."""

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

    @property
    def objects(self) -> list[str]:
        """The names of the types of objects that it defines."""
        return _OBJECT.findall(self.text)


class StubWriter:
    """Writes the stubs of one namespace, in which no two types or functions have the same name."""

    def __init__(self, functions: Collection[str]) -> None:
        self._taken = set(functions)

    def stub(self, name: str, tool: ServerTool) -> Stub:
        """Return the stub of a tool that is called `name` in its namespace."""
        before = set(self._taken)
        try:
            stub = self._typed_stub(name, tool) if _is_small(tool) else None
        except RecursionError:
            stub = None
        if stub is not None and len(stub.text) <= MAX_STUB_CHARACTERS:
            return stub
        self._taken = before
        head = f"def {name}(**arguments: Any) -> Any:  # the schema is too large for types\n"
        return Stub(head + body(tool.description[:_SHORT]), takes_more=True)

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


def _is_small(tool: ServerTool) -> bool:
    schemas = json.dumps([tool.input_schema, tool.output_schema], default=str)
    return len(schemas) <= MAX_SCHEMA_CHARACTERS


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
    given = schema.get("default") if isinstance(schema, dict) else None
    shows_default = isinstance(given, str | int | float) and found.takes(given) and len(repr(given)) <= _SHORT
    default = "" if parameter.required else f" = {given!r}" if shows_default else " = ..."
    about = writer.comment(schema, found, shows_default=shows_default and not parameter.required)
    return f"{parameter.name}: {found.annotation()}{default}", about


def _more(schema: Mapping[str, Any], writer: TypeWriter, name: str) -> PythonType | None:
    """Return the type of arguments that the schema does not name, or None if it allows none."""
    others = schema.get("additionalProperties")
    if others is None:
        return None if "properties" in schema else ANYTHING
    return None if others is False else writer.type_of(others, name)


def _result_schema(given: Any) -> tuple[dict[str, Any], bool]:
    """Return the schema of structured results, and whether `result` is its only key."""
    whole = repaired(given) if isinstance(given, dict) else {}
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
    """Return the body of a function: what its signature does not say."""
    parts = [tool.description.strip()]
    if schema.rule:
        parts.append(f"The arguments must also satisfy this JSON Schema: {schema.rule}")
    parts += [f"Result: {reason}" for reason in reasons]
    return body("\n\n".join(filter(None, parts)))
