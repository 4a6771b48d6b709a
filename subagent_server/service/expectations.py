"""The expectations of a case, held against the result of a run. The result is data, whatever it says.

Patterns and schemas are checked in a process that can be killed. An expected command runs with the rights of
the user, in the directory in which the agent has worked; its file has been trusted before.

Tested in `tests/cli/test_eval.py`.
"""

import asyncio
import json
import os
import re
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subagent_server.catalog.eval_file import Expectation
from subagent_server.domain.errors import shorten
from subagent_server.domain.records import RunResult
from subagent_server.host.killable import WorkDied, killable
from subagent_server.host.schema_check import misfit

PATTERN_SECONDS = 5.0
_SHOWN_OUTPUT = 300
"""Characters of the end of what a failed command printed."""


@dataclass(frozen=True)
class Judged:
    """The subject of an expectation: the result of a run, and where the run worked."""

    result: RunResult
    cwd: Path
    environment: dict[str, str]

    @property
    def text(self) -> str:
        """The result as text; a structured one as JSON."""
        if self.result.has_output:
            return json.dumps(self.result.output, ensure_ascii=False, indent=2)
        return self.result.text


async def unmet(expectation: Expectation, judged: Judged) -> str | None:
    """Return why an expectation other than a judge is not met; None if it is. Call it in the main thread."""
    if expectation.json_schema is not None:
        return await _misfit(expectation.json_schema, judged)
    if expectation.pattern is not None:
        return await _not_found(expectation.pattern, judged.text)
    assert expectation.command is not None
    return await _failed(expectation.command, expectation.timeout_seconds, judged)


async def _misfit(schema: Any, judged: Judged) -> str | None:
    value = judged.result.output
    if not judged.result.has_output:
        try:
            value = json.loads(judged.result.text)
        except (ValueError, RecursionError):
            return "the result is not JSON, and a schema is expected to fit it"
    problem = await misfit(schema, value)
    return None if problem is None else f"the result {problem}"


async def _not_found(pattern: str, text: str) -> str | None:
    def found() -> bool:
        return re.search(pattern, text, re.MULTILINE) is not None

    try:
        is_met = await killable(found, PATTERN_SECONDS)
    except TimeoutError:
        return f"the pattern {shorten(pattern)} was not searched within {PATTERN_SECONDS:g} s: simplify it"
    except (WorkDied, OSError) as error:
        return f"the pattern {shorten(pattern)} could not be searched ({error})"
    return None if is_met else f"the pattern {shorten(pattern)} is not in the result"


async def _failed(command: list[str], seconds: float, judged: Judged) -> str | None:
    shown = shorten(" ".join(command))
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
        given.write(judged.text.encode("utf-8", "replace"))
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=printed,
                stderr=printed,
                cwd=judged.cwd,
                env=judged.environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"the command {shown} cannot be started ({getattr(error, 'strerror', None) or error})"
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            return f"the command {shown} has not ended after {seconds:g} s"
        finally:
            with suppress(ProcessLookupError):  # what it left behind ends with it
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return None if code == 0 else f"the command {shown} ended with {code}{_end_of(printed)}"


def _end_of(printed: Any) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _SHOWN_OUTPUT * 4))
    text = " ".join(printed.read().decode("utf-8", "replace").split())[-_SHOWN_OUTPUT:]
    return f": {text}" if text else ""
