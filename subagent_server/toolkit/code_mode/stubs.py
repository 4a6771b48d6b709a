"""The text of a tool's function, as the model reads it: types, signature, docstring. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.toolkit.code_mode.names import python_name
from subagent_server.toolkit.mcp_servers.input_schema import input_schema


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
    parameters: Sequence[Parameter]
    takes_more: bool = False
    unwraps: bool = False


class StubWriter:
    """Writes the stubs of one namespace; no two types in it have the same name."""

    def stub(self, name: str, tool: ServerTool) -> Stub:
        """Return the stub of a tool that is called `name` in its namespace."""
        schema = input_schema(tool.input_schema)
        parameters: list[Parameter] = []
        for key in schema.schema.get("properties") or {}:
            taken = {parameter.name for parameter in parameters}
            required = key in schema.schema.get("required", ())
            parameters.append(
                Parameter(python_name(key, "argument", taken), schema.names.get(key, key), required)
            )
        written = ", ".join(each.name if each.required else f"{each.name}=..." for each in parameters)
        return Stub(f"def {name}({f'*, {written}' if written else ''}) -> Text: ...", parameters)
