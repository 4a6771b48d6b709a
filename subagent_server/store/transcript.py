"""The conversation of a run with its model (`transcript.jsonl`), a message a line: enough to go on from.

A message with tool calls is on the disk before the first call begins, so a continuation knows of every call
with a possible effect (SPEC section 6).
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from subagent_server.domain.errors import StorageFailed
from subagent_server.host import atomic, journal
from subagent_server.host.stderr import log
from subagent_server.store.paths import RunPaths

Message = dict[str, Any]


class Transcript:
    """Appends messages. A message refused by the disk is written before the next (SPEC section 6)."""

    def __init__(self, run: RunPaths) -> None:
        self._file = run.transcript
        self._waiting: list[Message] = []

    def append(self, message: Message) -> None:
        """Append a message; a disk that refuses is a warning on stderr, and the run goes on."""
        self._waiting.append(message)
        try:
            while self._waiting:
                journal.append_line(self._file, self._waiting[0])
                self._waiting.pop(0)
        except OSError as error:
            log(f"The transcript could not be written ({error}); the run goes on.")
            return
        if _calls_tools(message):
            self._sync()

    def begin(self, messages: Iterable[Message]) -> None:
        """Make these messages the whole transcript, at once and durably; a disk that refuses is a warning."""
        messages = list(messages)
        lines = [json.dumps(message, ensure_ascii=False, separators=(",", ":")) for message in messages]
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        try:
            atomic.write_durably(self._file, data)
        except StorageFailed as error:
            log(f"{error.sentence} The run goes on.")
            self._waiting = [] if self._file.exists() else messages

    def _sync(self) -> None:
        """A power cut must not hide what a tool has done. The file's name may be as new as its first line."""
        with suppress(OSError):
            descriptor = self._file.open()
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._file.directory.sync()


def read_transcript(run: RunPaths) -> Iterator[Message]:
    """Yield the whole messages of the conversation; a torn line is left out."""
    return journal.records(run.transcript)


def _calls_tools(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == "tool_use" for block in content
    )
