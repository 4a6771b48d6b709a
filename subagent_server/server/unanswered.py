"""The unanswered requests of one connection, which a server answers with an error before it leaves."""

from collections.abc import Iterator
from contextlib import contextmanager

import mcp_types as types

CANCELLED = "notifications/cancelled"
LEFT = (
    "The server left before this call was answered. Runs go on: look with list_runs before you call again, "
    "or start anything again."
)


class Unanswered:
    """Notes each request that is read, until its answer is written. Used on the event loop only."""

    def __init__(self) -> None:
        self._open: dict[types.RequestId, None] = {}
        self._being_written: list[types.RequestId] = []

    @property
    def count(self) -> int:
        """How many requests have no answer, or not all of it."""
        return len(self._open) + len(self._being_written)

    def note_read(self, message: types.JSONRPCMessage) -> None:
        """Note a message of the client. A request that it cancels needs no answer any more."""
        if isinstance(message, types.JSONRPCRequest):
            self._open[message.id] = None
        elif isinstance(message, types.JSONRPCNotification) and message.method == CANCELLED:
            cancelled = (message.params or {}).get("requestId")
            if isinstance(cancelled, int | str):
                self._open.pop(cancelled, None)

    @contextmanager
    def writing(self, message: types.JSONRPCMessage) -> Iterator[None]:
        """Enter before a message to the client is written, and leave when it is: it may be an answer."""
        answered = message.id if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) else None
        if answered is None or answered not in self._open:
            yield
            return
        del self._open[answered]
        self._being_written.append(answered)
        try:
            yield
        finally:
            self._being_written.remove(answered)

    def refusals(self) -> Iterator[types.JSONRPCError]:
        """Yield an error for each request that has no answer yet: send one before taking the next."""
        error = types.ErrorData(code=types.CONNECTION_CLOSED, message=LEFT)
        while self._open:
            yield types.JSONRPCError(jsonrpc="2.0", id=next(iter(self._open)), error=error)
