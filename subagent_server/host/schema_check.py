"""The check of a value against a JSON Schema, in a process that can be killed."""

from typing import TYPE_CHECKING, Any

from subagent_server.domain.json_schema import NEWEST, validator_name
from subagent_server.host.killable import WorkDied, killable

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

CHECK_SECONDS = 5.0
"""How long a check may take: a pattern in a schema can take for ever over a few characters."""


def validator(schema: Any) -> "Validator":
    """Return the validator of a schema by its own draft. It looks nothing up, on a disk or in a network."""
    # Imported here: it takes a twentieth of a second, and most agents promise no output.
    import jsonschema
    from jsonschema_specifications import REGISTRY

    kind = getattr(jsonschema, validator_name(schema) or NEWEST)
    made: Validator = kind(schema, registry=REGISTRY)
    return made


async def misfit(schema: Any, value: Any, seconds: float = CHECK_SECONDS) -> str | None:
    """Return why `value` is refused, as the end of a sentence about it; None if it fits. In the main thread.

    A value that cannot be checked within `seconds` is refused.
    """
    judge = validator(schema)
    try:
        problem: str | None = await killable(lambda: _problem(judge, value), seconds)
    except TimeoutError:
        return f"could not be held against its schema within {seconds:g} s: it needs shorter, simpler values"
    except (WorkDied, OSError) as error:
        return f"could not be held against its schema ({error}): it needs less in it"
    return None if problem is None else f"does not fit its schema: {problem}"


def _problem(judge: "Validator", value: Any) -> str | None:
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(judge.iter_errors(value))
    except RecursionError:
        return "it, or the schema, goes too deep to be checked"
    except Unresolvable as lost:
        return f"its reference {_cut(lost.ref, 200)} leads nowhere"
    return None if error is None else _sentence(error)


def _sentence(error: "ValidationError") -> str:
    return f"{_cut(error.json_path, 200)}: {_cut(error.message, 500)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
