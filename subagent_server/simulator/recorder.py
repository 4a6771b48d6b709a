"""The requests that arrived, kept for tests and people to look at."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from subagent_server.domain.errors import StorageFailed

KEPT = 10_000
"""How many requests are kept; older ones are forgotten."""

_SECRET_HEADERS = frozenset({"x-api-key", "authorization"})


@dataclass
class RecordedRequest:
    """One request as it arrived, whether it was answered or refused.

    `arrived` is `time.monotonic()` in seconds. `answer` says what it got: the place of the turn in the
    script, with the fault if there was one, or the refusal; it is empty until that is decided.
    """

    path: str
    headers: dict[str, str] = field(repr=False)
    raw: bytes = field(repr=False)
    arrived: float
    answer: str = ""

    @property
    def body(self) -> Any:
        """The parsed body; the text itself if it is not JSON."""
        try:
            return json.loads(self.raw)
        except ValueError:
            return self.raw.decode("utf-8", "replace")

    def line(self) -> bytes:
        """Return the request as one line of JSON, with its body whole and its credentials left out."""
        about = {
            "path": self.path,
            "arrived": self.arrived,
            "answer": self.answer,
            "headers": {
                name: "[redacted]" if name in _SECRET_HEADERS else value
                for name, value in self.headers.items()
            },
            "body": self.body,
        }
        return json.dumps(about).encode("ascii")


class RequestRecorder:
    """Keeps the last `KEPT` requests and, while open, appends each to a file. Threads may share it."""

    def __init__(self, file: Path | None = None) -> None:
        self._changed = threading.Condition()
        self._requests: deque[RecordedRequest] = deque(maxlen=KEPT)
        self._path = file
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Open the file, if there is to be one.

        Raises:
            StorageFailed: it cannot be opened.
        """
        if self._path is None:
            return
        try:
            self._file = self._path.open("ab")
        except OSError as error:
            raise StorageFailed(self._path, error.strerror or str(error)) from error

    def arrived(self, path: str, headers: Mapping[str, str], raw: bytes) -> RecordedRequest:
        """Keep a request that has just arrived."""
        request = RecordedRequest(path, dict(headers), raw, time.monotonic())
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        return request

    def answered(self, request: RecordedRequest, answer: str) -> None:
        """Note the answer to `request`, and write it to the file."""
        request.answer = answer
        if self._file is not None:
            self._file.write(request.line() + b"\n")
            self._file.flush()

    def snapshot(self) -> list[RecordedRequest]:
        """Return the requests so far, oldest first."""
        with self._changed:
            return list(self._requests)

    def clear(self) -> None:
        """Forget the requests so far; the file keeps them."""
        with self._changed:
            self._requests.clear()

    def wait_for(self, count: int, timeout: float) -> list[RecordedRequest]:
        """Return the requests as soon as there are `count` of them.

        Raises:
            TimeoutError: there were fewer after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._requests)} of {count} requests reached the simulator within {timeout:g} s."
                )
            return list(self._requests)

    def as_json(self) -> Iterator[bytes]:
        """Yield the pieces of a JSON list of the requests so far."""
        yield b"["
        for number, request in enumerate(self.snapshot()):
            yield (b",\n" if number else b"\n") + request.line()
        yield b"\n]\n"

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
