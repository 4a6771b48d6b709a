"""One tool call, and the check of its arguments."""

import math
import re
from collections.abc import Awaitable, Callable, Collection, Sized
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from subagent_server.domain.errors import BadArgument
from subagent_server.service.next_calls import ToolCalls
from subagent_server.service.tools.schema import Schema

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

Arguments = dict[str, Any]
MAX_FAULT_CHARACTERS = 300


@dataclass
class Call:
    """A tool call: its arguments, the longest wait in seconds, and the means of reporting the wait.

    `progress` gets the seconds waited so far and the ids of the awaited runs. `beside` is entered with these
    ids, and left when the wait is over. `client` is the client's name.
    """

    arguments: Arguments
    longest_wait: float
    progress: Callable[[float, Collection[str]], Awaitable[None]] | None = None
    beside: Callable[[Collection[str]], AbstractAsyncContextManager[None]] | None = None
    client: str | None = None
    http_url: str | None = None
    """The address under which the client reaches this server by HTTP, with a slash at its end."""

    @property
    def next_calls(self) -> ToolCalls:
        """The next calls of its answer, with waits up to the client's timeout."""
        return ToolCalls(self.longest_wait)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument."""
        return self.arguments.get(name, default)

    def wait_seconds(self, default: float = 0) -> float:
        """Return how long to wait, within the timeout of the client."""
        return min(float(self.get("waitSeconds", default)), self.longest_wait)

    def wait_note(self, default: float = 0) -> str | None:
        """Return the sentence in the answer about a wait cut short."""
        if float(self.get("waitSeconds", default)) <= self.longest_wait:
            return None
        return (
            f"waitSeconds was cut to {self.longest_wait:g}: your client gives up on longer calls; call again."
        )

    def waiting_for(self, run_ids: Collection[str]) -> AbstractAsyncContextManager[None]:
        """Return the context in which the call waits for these runs."""
        return nullcontext() if self.beside is None else self.beside(run_ids)


def check_arguments(tool: str, arguments: Arguments, schema: Schema) -> None:
    """Refuse arguments that do not fit, naming the argument to mend; what hosts write is read as it is meant.

    An optional argument that is null or an empty text is left out: some hosts fill in every argument, and
    those of OpenAI's strict mode have to. A number given as text becomes one.

    Raises:
        BadArgument.
    """
    from jsonschema import Draft202012Validator  # a twelfth of a start, and no list of tools needs it
    from jsonschema.exceptions import best_match

    for name in [name for name, value in arguments.items() if value is None or value == ""]:
        if name in schema["properties"] and name not in schema["required"]:
            del arguments[name]
    _take_numbers(arguments, schema)
    for name, value in arguments.items():
        if isinstance(value, float) and math.isnan(value):  # it passes every bound of a schema
            raise BadArgument(f"{tool}: {name} is no number: mend the arguments, and call again.")
    error = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if error is not None:
        raise BadArgument(f"{tool}: {_fault(error)}, and call again.")


def _take_numbers(arguments: Arguments, schema: Schema) -> None:
    """Replace each number that is given as text, or as 50.0 for 50: many models write them so."""
    for name, value in arguments.items():
        wanted = schema["properties"].get(name, {}).get("type")
        if isinstance(value, str) and wanted in {"number", "integer"} and _NUMBER.fullmatch(value.strip()):
            value = float(value)
        if isinstance(value, float) and wanted in {"number", "integer"} and value.is_integer():
            value = int(value)
        arguments[name] = value


_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,6})?", re.ASCII)
"""The numbers that a float holds exactly enough to be taken for the text."""

_SIZES = {
    "maxLength": ("characters", "shorten it, or put the material into a file that it names"),
    "maxItems": ("entries", "leave some out"),
}
"""How an excess is described; the validator would quote the whole of it."""


def _fault(error: "ValidationError") -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator in _SIZES:
        unit, instead = _SIZES[str(error.validator)]
        size = len(cast(Sized, error.instance))
        return f"{where} has {size:,} of at most {error.validator_value:,} {unit}: {instead}"
    message = error.message
    if len(message) > MAX_FAULT_CHARACTERS:
        message = message[:MAX_FAULT_CHARACTERS] + "…"
    return f"{where}: {message}: mend the arguments" if where else f"{message}: mend the arguments"
