"""JSON Schemas of the arguments of tools. Short: every parent pays for what its model sees of them."""

from typing import Any

from subagent_server.domain.limits import MAX_SUMMARY_CHARACTERS

Schema = dict[str, Any]

MAX_WAIT_SECONDS = 86_400


def arguments(required: list[str], **properties: Schema) -> Schema:
    """Return the input schema of a tool."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def text(description: str = "", **more: Any) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def bounded(kind: str, least: int, most: int, default: int) -> Schema:
    """Return the schema of a number. Words repeat its bounds: some clients pass on nothing else."""
    bounds = {"minimum": least, "maximum": most, "default": default}
    return {"type": kind, "description": f"Default {default}, at most {most}", **bounds}


def wait(default: int) -> Schema:
    """Return the schema of `waitSeconds`."""
    return bounded("number", 0, MAX_WAIT_SECONDS, default)


def brief(schema: Schema) -> Schema:
    """Return an input schema as a model sees it: the call checks bounds and unknown names all the same."""
    properties = {name: _without_bounds(each) for name, each in schema["properties"].items()}
    return {"type": schema["type"], "properties": properties, "required": schema["required"]}


def _without_bounds(schema: Schema) -> Schema:
    return {"type": schema["type"]} if "maximum" in schema else schema


RUN_ID = text()
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
SUMMARY = text(maxLength=MAX_SUMMARY_CHARACTERS)
