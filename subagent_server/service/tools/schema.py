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


def bounded(kind: str, least: int, most: int, default: int, use: str) -> Schema:
    """Return the schema of a number. Words have its default: the schema that a model sees has none."""
    return {"type": kind, "description": f"{use}. Default {default}", "minimum": least, "maximum": most}


def wait(default: int, use: str = "Until it ends or asks") -> Schema:
    """Return the schema of `waitSeconds`."""
    return bounded("number", 0, MAX_WAIT_SECONDS, default, use)


_NOT_SHOWN = frozenset({"additionalProperties", "minimum", "maximum", "maxLength", "maxItems"})


def brief(schema: Schema) -> Schema:
    """Return an input schema as a model sees it. Bounds are checked at the call, whose refusal names them."""
    properties = {
        name: {key: value for key, value in each.items() if key not in _NOT_SHOWN}
        for name, each in schema["properties"].items()
    }
    shown = {key: value for key, value in schema.items() if key not in _NOT_SHOWN and value != []}
    return shown | {"properties": properties}


RUN_ID = text("Its id")
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
SUMMARY = text(maxLength=MAX_SUMMARY_CHARACTERS)
