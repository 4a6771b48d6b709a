"""Ways for an answer to go wrong, and the count of how often each has."""

import sys
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from subagent_server.simulator.parts import Count, Part, Positive, Seconds

FAULT_KINDS = (
    "status",
    "cut_after",
    "stream_error",
    "malformed_tool_json",
    "hang",
    "stall_after",
    "garbage_after",
)

_COMPANIONS = {
    "retry_after": ("status",),
    "error_type": ("status",),
    "message": ("status", "stream_error"),
    "after": ("stream_error",),
    "pings": ("stall_after",),
}
"""Keys of a fault that mean something with some kinds only."""


def _malformed(value: object) -> object:
    return ("truncated" if value else None) if isinstance(value, bool) else value


def _times(value: object) -> object:
    return sys.maxsize if value == "always" else value


class Fault(Part):
    """One way to go wrong, for the first `times` requests of a turn; each is of exactly one kind.

    `status`: an HTTP error, with `retry_after` (seconds), `error_type` and `message`. `cut_after`: the
    connection is cut after so many events of the stream, 0 being before any byte. `stream_error`: an error
    event of this type `after` so many events. `malformed_tool_json`: `truncated` or `garbled` tool input.
    `hang`: no answer until the client goes away. `stall_after`: after so many events nothing more comes, but
    pings where `pings` gives the seconds between them. `garbage_after`: after so many events one that is no
    JSON, and the end.
    """

    status: Annotated[int, Field(ge=400, le=599)] | None = None
    retry_after: Seconds | None = None
    error_type: str | None = None
    message: str | None = None
    cut_after: Count | None = None
    stream_error: str | None = None
    after: Count = 1
    malformed_tool_json: Annotated[Literal["truncated", "garbled"] | None, BeforeValidator(_malformed)] = None
    hang: bool = False
    stall_after: Count | None = None
    garbage_after: Count | None = None
    pings: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    times: Annotated[Positive, BeforeValidator(_times)] = 1

    @model_validator(mode="after")
    def _one_kind(self) -> "Fault":
        given = self._given_kinds()
        if len(given) != 1:
            raise ValueError(f"must have exactly one of {', '.join(FAULT_KINDS)}, and has {len(given)}")
        for key, kinds in _COMPANIONS.items():
            if key in self.model_fields_set and given[0] not in kinds:
                raise ValueError(f"has {key!r}, which goes with {' or '.join(kinds)} only")
        return self

    @property
    def kind(self) -> str:
        """Which of `FAULT_KINDS` this is."""
        return self._given_kinds()[0]

    @property
    def limit(self) -> int | None:
        """The number of events after which this happens, if it breaks a stream."""
        if self.stream_error is not None:
            return self.after
        return next(
            (n for n in (self.cut_after, self.stall_after, self.garbage_after) if n is not None), None
        )

    def _given_kinds(self) -> list[str]:
        values = {kind: getattr(self, kind) for kind in FAULT_KINDS}
        return [kind for kind, value in values.items() if value is not None and value is not False]


class FaultLedger:
    """Remembers how many faults each turn of each conversation has had: the only state of the simulator."""

    def __init__(self) -> None:
        self._given: Counter[Hashable] = Counter()

    def take(self, key: Hashable, faults: Iterable[Fault]) -> Fault | None:
        """Return the fault that is next for `key`, or None when all of `faults` are used up."""
        past = self._given[key]
        for fault in faults:
            if past < fault.times:
                self._given[key] += 1
                return fault
            past -= fault.times
        return None
