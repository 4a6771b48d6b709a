"""Any program: the task on its stdin or as an argument, its output or a JSON file as the result.

In `args` these fields are replaced: `{prompt}`, `{systemPrompt}`, `{model}`, `{effort}`, `{mcpConfig}` (a
file that names the child's MCP server) and `{resultFile}` (a file for the result: JSON, or text).
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from subagent_server.extensions.programs.program import Launch, ProgramEvents, ProgramTask
from subagent_server.loop.runner import Outcome
from subagent_server.run.commands import searched
from subagent_server.run.errors import shorten, visible
from subagent_server.run.records import storable
from subagent_server.toolbox.agent_process import AgentProcess
from subagent_server.toolbox.run_context import Permissions

RESULT_BYTES = 16 << 20
"""Of a result file; a longer one is refused."""
MOST_KEPT = 400_000
"""Characters of the output that are kept as the result: its end."""
_SHOWN_AT_ONCE = 16_000
_TELL_SECONDS = 1.0
_PLACEHOLDER = re.compile(r"\{(prompt|systemPrompt|model|effort|mcpConfig|resultFile)\}")
_RESULT_VARIABLE = "SUBAGENT_RESULT_FILE"
_CONFIG_VARIABLE = "SUBAGENT_MCP_CONFIG"


class CommandDialect:
    """Implements `Dialect` for a program that only reads and writes text."""

    def __init__(self, task: ProgramTask, events: ProgramEvents, _: Permissions) -> None:
        self._task = task
        self._events = events
        self._result = task.state.entry("result.json")
        self._output = _Output(events)
        self._takes_prompt = any("{prompt}" in word for word in task.agent.args)

    def launch(self) -> Launch:
        """Return its command line; the files that the line names are written before."""
        agent, config = self._task.agent, str(self._task.write_mcp_config())
        words = {
            "prompt": self._task.prompt,
            "systemPrompt": self._task.system,
            "model": agent.model or "",
            "effort": agent.effort or "",
            "mcpConfig": config,
            "resultFile": str(self._result.path),
        }
        argv = [agent.command or "", *(_filled(word, words) for word in agent.args)]
        return Launch(argv, {_RESULT_VARIABLE: str(self._result.path), _CONFIG_VARIABLE: config})

    async def converse(self, process: AgentProcess) -> Outcome:
        """Send the program its task, and take its output until it exits."""
        telling = asyncio.create_task(self._tell(process))
        try:
            async for line in process.lines():
                self._output.take(line.decode("utf-8", "replace"))
            self._output.end(process.left_out)
            return await self._ended(await process.exited())
        finally:
            telling.cancel()

    async def _tell(self, process: AgentProcess) -> None:
        if not self._takes_prompt:
            await process.write(self._task.prompt.encode("utf-8", "replace"))
        process.close_input()  # also without a prompt: a program that reads its input would wait for ever

    def interrupt(self, process: AgentProcess) -> None:
        """Send it SIGINT."""
        process.interrupt()

    async def _ended(self, code: int | None) -> Outcome:
        """Return how the run ended. A program that exits well and without a word has done nothing."""
        text, fails = self._output.text, self._task.agent.fail_if
        if code is None or code < 0 or (code in fails.exit_codes if fails.exit_codes is not None else code):
            hint = "Look at run.log, which has its output and its errors."
            if self._task.boxed:
                hint += " What it needs from elsewhere has to be in `sandboxRead`."
            return self._events.broken_off("The program", code, hint=hint)
        if fails.output is not None and (why := await _found(fails.output, text)) is not None:
            hint = "failIf.output in the agent file says that this is a failure."
            return self._events.failed(why, hint=hint)
        outcome = self._with_result_file(Outcome(text))
        if outcome.failure is None and not (text.strip() or outcome.has_output):
            hint = f"Let it print its result, or write it to the file that {_RESULT_VARIABLE} names."
            why = "The program exited without output, and without a result file."
            return self._events.failed(why, hint=hint)
        if not outcome.has_output and outcome.text is text:
            # its beginning may be a banner: the last line of an output is nearer to a result
            lines = [line for line in text.splitlines() if line.strip(" `")]  # not the end of a fence
            return replace(outcome, summary=lines[-1].strip()[:300] if lines else None)
        return outcome

    def _with_result_file(self, outcome: Outcome) -> Outcome:
        try:
            content = self._result.read(RESULT_BYTES)
        except FileNotFoundError:
            return outcome
        except OSError as error:
            return self._bad_result(f"cannot be read ({error.strerror or error})")
        try:
            output = storable(content)
            summary = output.get("summary") if isinstance(output, dict) else output
            if not isinstance(summary, str):
                summary = json.dumps(output, ensure_ascii=False)
            return Outcome(outcome.text, output=output, has_output=True, summary=summary[:300])
        except (ValueError, RecursionError):
            if self._task.agent.output_schema is not None:
                return self._bad_result("is not JSON")
        text = content.decode("utf-8", "replace").strip("\n")
        if len(text) > MOST_KEPT:
            return self._bad_result(f"is text of more than {MOST_KEPT:,} characters")
        return Outcome(text) if text.strip() else outcome

    def _bad_result(self, why: str) -> Outcome:
        message = f"The result file of the program {why}."
        hint = f"Let it write JSON of at most {RESULT_BYTES >> 20} MiB into {_RESULT_VARIABLE}, or no file."
        return self._events.failed(message, "invalid_output", hint)


class _Output:
    """The output of a program, recorded in pieces that are neither many nor late. `text` is its end."""

    def __init__(self, events: ProgramEvents) -> None:
        self._events = events
        self._kept: deque[str] = deque()
        self._length = 0
        self._left_out = 0
        self._untold: list[str] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def text(self) -> str:
        """All of it, or as much of its end as is kept."""
        kept = "\n".join(self._kept).strip("\n")
        left_out = self._left_out + max(0, len(kept) - MOST_KEPT)
        return f"[{left_out:,} characters are left out]\n{kept[-MOST_KEPT:]}" if left_out else kept

    def take(self, line: str) -> None:
        """Take a line."""
        self._events.progress()
        self._kept.append(line)
        self._length += len(line) + 1
        while self._length - len(self._kept[0]) > MOST_KEPT:
            gone = len(self._kept.popleft()) + 1
            self._length -= gone
            self._left_out += gone
        self._untold.append(line)
        self._size += len(line)
        if self._size >= _SHOWN_AT_ONCE:
            self._say()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TELL_SECONDS, self._say)

    def end(self, left_out: int) -> None:
        """Report the rest, and how many lines were too long."""
        self._say()
        if left_out:
            self._events.warn(f"{left_out:,} lines of the program's output were too long and are left out.")
        self._events.text = self.text

    def _say(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._untold:
            self._events.say(visible("\n".join(self._untold), "\n\t"))
        self._untold, self._size = [], 0


async def _found(pattern: str, text: str) -> str | None:
    """Return a sentence if a pattern is in the output, or cannot be looked for; None if it is not there."""
    name, found = shorten(pattern), await searched(pattern, text)
    if isinstance(found, str):
        return f"The pattern {name} {found}."
    return f"The output of the program has {name}." if found else None


def _filled(word: str, words: Mapping[str, str]) -> str:
    """Return an argument with its fields replaced; what replaces them is not looked through again."""
    filled = _PLACEHOLDER.sub(lambda placeholder: words[placeholder[1]].replace("\0", ""), word)
    # the words of a caller, such as a list with dashes, are no option of the program
    return f" {filled}" if filled.startswith("-") and not word.startswith("-") else filled
