"""The events of a program, recorded in the journal, the usage and the preview as for every run.

A program may say anything, as often and as long as it likes. The journal bounds each text; this module bounds
all texts together. A text that is not recorded still counts for the result.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

from subagent_server.domain.records import UNTOLD, Usage
from subagent_server.toolkit.run_context import RunContext

MOST_CHARACTERS = 32 << 20
"""Of all events of one run; texts beyond it are not written."""
MOST_EVENTS = 100_000
_LONGEST_WORDS = 600


_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")


def is_session_id(name: str) -> bool:
    """Whether a name may be given to a program as that of a conversation: it is not like an option."""
    return _SESSION_ID.fullmatch(name) is not None


class ProgramEvents:
    """Records what a program does. `text` is its last text, `usage` the figures that it has given so far."""

    def __init__(self, run: RunContext, last_errors: Callable[[], str] = str) -> None:
        """`last_errors` returns the end of what the program has written to stderr."""
        self.text = ""
        self.usage = UNTOLD
        self._run = run
        self._last_errors = last_errors
        self._last_progress = time.monotonic()
        self._words = ""
        self._characters = 0
        self._events = 0
        self._is_full = False

    # -- progress

    @property
    def idle_seconds(self) -> float:
        """How long ago the program has got on."""
        return time.monotonic() - self._last_progress

    def progress(self) -> None:
        """Note that the program makes progress, or that it waits for others."""
        self._last_progress = time.monotonic()

    @property
    def last_words(self) -> str:
        """The last output of the program without progress, for people; empty if there is none."""
        return self._words or self._last_errors()

    async def session(self, session_id: str) -> None:
        """Keep the name of the program's own record of the conversation. Raises SubagentError."""
        if is_session_id(session_id):
            await asyncio.to_thread(self._run.session_opened, session_id)

    def complain(self, words: str) -> None:
        """Record a trouble that the program tells of, such as a retry. It is no progress."""
        self._words = words.strip()[-_LONGEST_WORDS:]
        self._record("warning", message=words)

    # -- what it does

    def counts(self, *figures: str) -> None:
        """Count these figures of the usage from 0: the program tells of each turn, or of each call."""
        self.usage = self.usage.model_copy(update=dict.fromkeys(figures, 0))

    def turn(self) -> None:
        """Record that it calls its model once more."""
        turns = (self.usage.turns or 0) + 1
        self._did("turn", turn=turns)
        self.usage = self.usage.model_copy(update={"turns": turns})

    def say(self, text: str) -> None:
        """Record a whole text of it."""
        if text.strip():
            self.text = text
            self._did("text", text=text)

    def think(self, text: str) -> None:
        """Record a thought."""
        if text.strip():
            self._did("thought", text=text)

    def call(self, call_id: str, tool: str, arguments: Any) -> None:
        """Record that a tool begins."""
        self._did("tool_call", toolCallId=call_id, toolName=tool, arguments=arguments)
        self.usage = self.usage.model_copy(update={"tool_calls": (self.usage.tool_calls or 0) + 1})

    def result(
        self, call_id: str, tool: str, text: str, *, is_error: bool = False, exit_code: int | None = None
    ) -> None:
        """Record that a tool has ended."""
        code = {} if exit_code is None else {"exitCode": exit_code}
        self._did("tool_result", toolCallId=call_id, toolName=tool, text=text, isError=is_error, **code)

    def spend(self, usage: Usage) -> None:
        """Record the cost so far: totals, in which a figure that the program does not give is None."""
        if usage != self.usage:
            self.usage = usage
            self._record("usage", **usage.model_dump(mode="json"))
        self.progress()

    def warn(self, message: str) -> None:
        """Record something that people should know."""
        self._record("warning", message=message)

    def other(self, kind: str, event: Any) -> None:
        """Record an event of an unknown kind, as it came."""
        self._did("program_event", name=kind, event=event)

    def _did(self, kind: str, **facts: Any) -> None:
        self._words = ""
        self.progress()
        self._record(kind, **facts)

    def _record(self, kind: str, **facts: Any) -> None:
        self._events += 1
        self._characters += sum(len(fact) for fact in facts.values() if isinstance(fact, str))
        if self._events <= MOST_EVENTS and self._characters <= MOST_CHARACTERS:
            self._run.record(kind, **facts)
        elif not self._is_full:
            self._is_full = True
            self._run.record("warning", message="The program says so much that the rest is not written down.")
