"""One program: started, checked, given its task, answered, and ended with all that it has left."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from subagent_server.sandbox.trial import refusal_of
from subagent_server.toolkit.code_mode.calls import ProgramCalls
from subagent_server.toolkit.code_mode.channel import MOST_REQUEST_BYTES, Broken, Channel
from subagent_server.toolkit.code_mode.outcome import Outcome, ProgramEnd, judged
from subagent_server.toolkit.code_mode.process import ProgramPlace, ProgramProcess
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.output import OutputCapture

START_SECONDS = 60.0
INTERRUPT_SECONDS = 5.0
"""How long a program whose time is over may take after SIGINT."""
_LAST_RECORDS_SECONDS = 2.0


@dataclass(frozen=True)
class Ended:
    """A program that has ended, with its output in the length for the model."""

    end: ProgramEnd
    output: str


class Execution:
    """Runs one program. The time of the `calls`' clock bounds it."""

    def __init__(self, place: ProgramPlace, code: str, calls: ProgramCalls) -> None:
        self._place = place
        self._code = code
        self._calls = calls
        self._cut: str | None = None
        """Why the program was ended by us."""

    async def run(self, mark: str, capture: OutputCapture) -> Ended:
        """Run it to its end. However this ends, no process is left.

        Raises:
            OSError: the interpreter cannot be started.
            BoxRefused: it is not in the box that was asked for.
            RunOver, RunRefused: a call of the program ends the run.
        """
        started: list[ProgramProcess] = []
        ended: tuple[int | None, str] | None = None
        channel: Channel | None = None
        serving: asyncio.Task[None] | None = None
        try:
            await off_loop(lambda: started.append(ProgramProcess.start(self._place, mark, capture)))
            process = started[0]
            channel = await Channel.open(process.line, self._calls.answer)
            begun = await self._begun(process, channel)
            if begun:
                serving = asyncio.create_task(channel.serve())
                await self._watched(process, serving)
            ended = await off_loop(process.end)
            if serving is not None:
                await _last_records(channel, serving)
        finally:
            if ended is None and started:
                await off_loop(started[0].end)
            if serving is not None:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            if channel is not None:
                channel.close()
        exit_code, output = ended
        if not begun and self._cut is None:
            raise _not_begun(self._place, exit_code, output)
        if self._cut is not None:
            return Ended(ProgramEnd(Outcome.DIED, exit_code, self._cut), output)
        return Ended(judged(channel, exit_code), output)

    async def _begun(self, process: ProgramProcess, channel: Channel) -> bool:
        """Give the program its task, once its box is known to be closed; False if it did not get so far."""
        try:
            async with asyncio.timeout(START_SECONDS):
                if not await channel.begins():
                    return False
        except (TimeoutError, Broken):
            self._cut = f"[the interpreter did not get ready within {START_SECONDS:g} s]"
            return False
        limits = await off_loop(process.check)
        await channel.send(
            {
                "code": self._code,
                "functions": self._calls.functions.table(),
                "types": self._calls.functions.types(),
                "limits": limits,
                "mostBytes": MOST_REQUEST_BYTES,
            }
        )
        return True

    async def _watched(self, process: ProgramProcess, serving: "asyncio.Task[None]") -> None:
        """Return when the program has ended, or has to be ended."""
        clock = self._calls.clock
        exited = asyncio.create_task(process.exited())
        over = asyncio.create_task(clock.run_out())
        waits = {exited, over, serving}
        try:
            while not exited.done():
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if serving in done:
                    waits.discard(serving)
                    serving.result()
                if over in done and not exited.done():
                    self._cut = (
                        f"[timed out after {clock.seconds:g} s: the program and all it had started was ended]"
                    )
                    await off_loop(process.interrupt)
                    await asyncio.wait([exited], timeout=INTERRUPT_SECONDS)
                    return
        except Broken as error:
            self._cut = f"[the program was ended: it wrote to the socket of its tool calls itself; {error}]"
        finally:
            exited.cancel()
            over.cancel()


async def _last_records(channel: Channel, serving: "asyncio.Task[None]") -> None:
    """Take what the program wrote before it ended; the calls that are still under way get no more time."""
    closed = asyncio.create_task(channel.closed.wait())
    await asyncio.wait([closed, serving], timeout=_LAST_RECORDS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    closed.cancel()
    if serving.done():
        with suppress(Broken):
            serving.result()


def _not_begun(place: ProgramPlace, exit_code: int | None, output: str) -> Exception:
    if place.box is not None:
        return refusal_of(output, exit_code)
    words = output.strip().partition("\n")[0] or "it ended at once, without a word"
    return OSError(f"{place.python} did not start: {words}")
