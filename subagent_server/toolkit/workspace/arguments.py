"""From what a model passed to a tool to checked values, or to one sentence that says what is wrong."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from subagent_server.domain.errors import BadArgument, shorten

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "string_too_short": "text that is not empty",
}


class Arguments(BaseModel):
    """The base of every tool's arguments: no other keys, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


A = TypeVar("A", bound=Arguments)


def parse_arguments(model: type[A], raw: object) -> A:
    """Return `raw` as `model`.

    Raises:
        BadArgument: an argument is missing, mistyped or unknown.
    """
    if not isinstance(raw, dict):
        raise BadArgument(f"The arguments must be an object, not {shorten(repr(raw))}: call the tool again.")
    for name, value in raw.items():
        _check_unicode(str(name), value)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise BadArgument(_sentence(model, dict(error.errors(include_url=False)[0]))) from error


def _check_unicode(name: str, value: object) -> None:
    """Half a surrogate pair can come through JSON, but can be neither stored nor shown."""
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError as error:
        raise BadArgument(
            f"The argument {name!a} holds half of a surrogate pair, which is no character: "
            "write the whole character."
        ) from error


def _sentence(model: type[Arguments], fault: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    known = ", ".join(f"`{info.alias or name}`" for name, info in model.model_fields.items())
    if fault["type"] == "extra_forbidden":
        return f"There is no argument {shorten(where)}: this tool takes {known}."
    if fault["type"] == "missing":
        return f"The argument `{where}` is missing: this tool takes {known}."
    context = fault.get("ctx", {})
    wanted = _WANTED.get(fault["type"]) or context.get("expected") or _lowered(fault["msg"])
    return f"The argument `{where}` must be {wanted}, not {_shown(fault['input'])}."


def _lowered(message: str) -> str:
    return message.removeprefix("Input should be ").removeprefix("Value error, ")


def _shown(value: object) -> str:
    return shorten(value) if isinstance(value, str) else shorten(repr(value)).strip("'\"")
