"""The socket between a program and its host. Records are lines of JSON.

    {"ready": true}                                           the first record, before these modules are there
    {"call": 1, "function": "github.get", "arguments": {}}    a call, answered by its number
    {"end": 0}                                                0 well, 1 it raised, 2 out of memory
    {"fault": "..."}                                          these modules have failed; the exit code is 3

The host (`channel.py`) trusts them no more than the code itself, which can write anything here.
"""

from __future__ import annotations

import json
import os
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ToolError(Exception):
    """A tool has failed; the text says why."""

    __module__ = "__main__"  # so that a traceback names it as the code does


class Text(str):
    """The text of a result. `json()` is its value."""

    value: Any = None

    def json(self) -> Any:
        """Return the structured value that came with the text, else the text read as JSON."""
        return json.loads(self) if self.value is None else self.value


class Line:
    """The socket to the host. Threads may call at the same time: one of those that wait reads for all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._owner = os.getpid()
        self._unread = b""
        self._number = 0
        self._most_bytes = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._reading = False
        self._sending = threading.Lock()
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=lambda: os.close(descriptor))

    def task(self) -> dict[str, Any]:
        """Return the task of the program."""
        task = self._read()
        self._most_bytes = task["mostBytes"]
        return task

    def send(self, record: dict[str, Any]) -> None:
        """Send a record."""
        self._write(json.dumps(record).encode() + b"\n")

    def call(self, function: str, arguments: dict[str, Any]) -> Any:
        """Call a function of the host and return its value. Raises ToolError."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                "tools can be called in the program's own process only: use threads, or gather()"
            )
        try:
            written = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{function}(): the arguments have to be values of JSON ({error})") from None
        if len(written) > self._most_bytes:
            raise ValueError(f"{function}(): the arguments have more than {self._most_bytes:,} bytes of JSON")
        with self._changed:
            self._number += 1
            number = self._number
        record = f'{{"call": {number}, "function": {json.dumps(function)}, "arguments": {written}}}\n'
        self._write(record.encode())
        return _value(self._reply(number))

    def misfits(self, calls: list[tuple[str, dict[str, Any]]]) -> list[list[Any]]:
        """Return which of these calls have wrong arguments: the place of each, and the reason."""
        found: list[list[Any]] = self.call("check", {"calls": calls})
        return found

    def _reply(self, number: int) -> dict[str, Any]:
        with self._changed:
            while number not in self._replies:
                if self._reading:
                    self._changed.wait()
                    continue
                self._reading = True
                self._changed.release()
                try:
                    reply = self._read()
                finally:
                    self._changed.acquire()
                    self._reading = False
                    self._changed.notify_all()
                self._replies[reply["call"]] = reply
            return self._replies.pop(number)

    def _read(self) -> dict[str, Any]:
        parts = []
        while b"\n" not in self._unread:
            parts.append(self._unread)
            self._unread = b""
            try:
                self._unread = os.read(self._descriptor, 1 << 20)
            finally:
                if not self._unread:  # interrupted: keep what has come
                    self._unread = b"".join(parts)
                    parts = []
            if not self._unread:
                os._exit(2)  # nobody is there any more
        head, _, rest = self._unread.partition(b"\n")
        self._unread = rest
        record: dict[str, Any] = json.loads(b"".join([*parts, head]))
        return record

    def _write(self, data: bytes) -> None:
        with self._sending:
            unsent = memoryview(data)
            while unsent:
                unsent = unsent[os.write(self._descriptor, unsent) :]


def _value(reply: dict[str, Any]) -> Any:
    if "error" in reply:
        raise ToolError(reply["error"])
    if "text" in reply:
        text = Text(reply["text"])
        text.value = reply.get("value")
        return text
    return reply["value"]
