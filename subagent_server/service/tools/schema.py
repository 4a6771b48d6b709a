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
    """Return the schema of a number. Words repeat its bounds: some clients pass on nothing else."""
    bounds = {"minimum": least, "maximum": most, "default": default}
    return {"type": kind, "description": f"{use}. Default {default}, at most {most}", **bounds}


def wait(default: int, use: str = "Seconds to wait until it ends or asks") -> Schema:
    """Return the schema of `waitSeconds`."""
    return bounded("number", 0, MAX_WAIT_SECONDS, default, use)


def brief(schema: Schema) -> Schema:
    """Return an input schema as a model sees it: the call refuses unknown names all the same."""
    return {name: value for name, value in schema.items() if name != "additionalProperties"}


RUN_ID = text("Id of the run")
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
SUMMARY = text(maxLength=MAX_SUMMARY_CHARACTERS)
