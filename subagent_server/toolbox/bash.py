"""The tool `bash`: one shell for the whole run, so that `cd` and exports last."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from subagent_server.run.errors import BadArgument
from subagent_server.run.files import Directory, held_open
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.file_watch import CommandWatch, watching
from subagent_server.sandbox.readable import BoxRefused, end_of_run, tried_twice
from subagent_server.toolbox.agent_process import Spare, how_it_ended, spare_none
from subagent_server.toolbox.outputs import OutputCapture
from subagent_server.toolbox.shell import Ending, Reason, Shell
from subagent_server.toolbox.tool import ToolResult
from subagent_server.toolbox.workspace import Arguments, off_loop, parse_arguments

T = TypeVar("T")

COMMAND_SECONDS = 120.0
_READ_ONLY = "Read-only file system"
_RULE_OF_GIT = (
    "; git can commit only where the agent has `isolation: worktree` (or `sandbox: none`), else leave your "
    "changes uncommitted"
)
_NO_NETWORK = (
    *(
        "Network is unreachable",
        "Could not resolve host",
        "Temporary failure in name resolution",
        "EAI_AGAIN",
    ),
    "No matching distribution found",
)


class _BashArguments(Arguments):
    command: str | None = None
    restart: bool | None = None


class BashTool:
    """Runs commands in one shell, started on first use in `cwd` with exactly `environment`.

    A command that takes longer than `timeout` seconds is ended with all that the shell has started (TERM,
    after `grace` seconds KILL), and the next call gets a new shell. An output that is too long for the model
    goes to `output_dir`. Processes that are to be spared, such as the shims of other runs, outlive the shell
    that has started them.
    """

    name = "bash"
    sequential = True

    def __init__(
        self,
        *,
        cwd: Path,
        environment: Mapping[str, str],
        output_dir: Directory,
        timeout: float = COMMAND_SECONDS,
        grace: float = 2.0,
        masker: Masker | None = None,
        spare: Spare = spare_none,
        box: Callable[[], Box] | None = None,
        watch: CommandWatch | None = None,
    ) -> None:
        """`box` returns the box that the shell starts in; it is called in a thread.

        `watch` looks before and after each command for files that other programs execute.
        """
        self._cwd = cwd
        self._watch = watch
        self._new_box = box
        self._box: Box | None = None
        self._spare = spare
        self._environment = dict(environment)
        self._new_capture = lambda: OutputCapture(output_dir, masker=masker)
        self._timeout = timeout
        self._grace = grace
        self._shell: Shell | None = None
        self._turn = asyncio.Lock()
        self._interrupt: Callable[[], object] | None = None
        self._closed = False

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`: Anthropic's definition, which the models know."""
        return {"type": "bash_20250124", "name": self.name}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Run `command`, or start a new shell with `restart`. A cancelled call first ends its command."""
        wanted = _checked(parse_arguments(_BashArguments, arguments))
        async with self._turn:
            if self._closed:
                return ToolResult.failure("The shell is closed because the run is ending: finish now.")
            return await self._interruptible(lambda cancel: self._serve(wanted, cancel))

    async def begin(self) -> None:
        """Start the shell before the first command, which waits until its box is found closed.

        Raises:
            OSError, BoxRefused: there is none now; the first command tries it again.
        """
        async with self._turn:
            if not self._closed:
                await off_loop(self._started)

    async def aclose(self) -> None:
        """End the shell and all that it has started. A command that still runs is interrupted."""
        self._closed = True
        if self._interrupt is not None:
            self._interrupt()
        async with self._turn:
            await off_loop(self._drop_shell)

    async def _interruptible(self, work: Callable[[int], T]) -> T:
        readable, writable = os.pipe()
        with held_open(readable), held_open(writable):
            self._interrupt = lambda: os.write(writable, b"!")
            try:
                return await off_loop(lambda: work(readable), interrupt=self._interrupt)
            finally:
                self._interrupt = None

    def _serve(self, wanted: _BashArguments, cancel: int) -> ToolResult:
        notes = self._notes_on_former_shell(wanted)
        if wanted.command is None:
            return ToolResult.of_text(f"The shell was ended; the next command gets a new one in {self._cwd}.")
        try:
            try:
                shell = tried_twice(lambda: self._ready(cancel))
            except (OSError, ValueError) as error:
                why = f"bash could not be started in {self._cwd} ({error}): use other tools."
                return ToolResult.failure(why)
            notes += _late_output(shell.take_output())
            with watching(self._watch, wanted.command) as came:
                ending = shell.run(wanted.command, self._timeout, cancel)
                remark = self._remark(ending)
        except BoxRefused as refusal:
            self._drop_shell()
            raise end_of_run("The shell", refusal) from refusal
        text = shell.take_output().finish().rstrip("\n")
        parts = [*notes, text if text.strip() else "", remark, self._rule_of_the_box(text), came.remark]
        answer = "\n".join(part for part in parts if part) or "(no output)"
        failed = ending.reason in (Reason.TIMED_OUT, Reason.INTERRUPTED)
        result = ToolResult.failure(answer) if failed else ToolResult.of_text(answer)
        return replace(result, exit_code=ending.exit_code)

    def _notes_on_former_shell(self, wanted: _BashArguments) -> list[str]:
        """End a shell that has died or shall be restarted, and return notes on it for the model."""
        if wanted.restart:
            self._drop_shell()
        elif self._shell is not None and self._shell.has_ended:
            former = self._shell
            how = _how(self._end_shell())
            return [
                *_late_output(former.take_output()),
                f"[the earlier shell {how}; this is a new one in {self._cwd}]",
            ]
        return []

    def _remark(self, ending: Ending) -> str:
        """Return a note on the end of a command. If the shell has died, end the processes it has left."""
        if ending.reason is Reason.DONE:
            if ending.exit_code is None:
                return "[a `break` or `continue` outside of any loop ended the command there]"
            return f"[exit code {ending.exit_code}]" if ending.exit_code else ""
        code = self._end_shell()
        anew = f"the next call starts a new one in {self._cwd}"
        if ending.reason is Reason.DIED:
            return f"[the shell {_how(code)}, and what it had started was ended with it; {anew}]"
        if ending.reason is Reason.INTERRUPTED:
            return "[the command was ended because the run is being stopped]"
        return (
            f"[timed out after {self._timeout:g} s: the command was ended, and the shell with everything it "
            f"had started; {anew}. Start what takes longer in the background, with its output in a file]"
        )

    def _rule_of_the_box(self, text: str) -> str:
        """Return a note for the model if a command met a wall, which reads like a fault of the machine."""
        if self._box is None:
            return ""
        if _READ_ONLY in text:
            git = _RULE_OF_GIT if ".git/" in text else ""
            return f"[read-only in this sandbox, on purpose: it can write {self._cwd} and /tmp{git}]"
        if not self._box.network and any(sign in text for sign in _NO_NETWORK):
            return "[there is no network in this sandbox, on purpose]"
        return ""

    def _started(self) -> Shell:
        """Return the shell, started if there is none. Raises OSError, BoxRefused."""
        if self._shell is None:
            # The thread stays as long as the event loop: a box ends with the thread that has started it.
            self._box = None if self._new_box is None else self._new_box()
            self._shell = Shell.start(
                cwd=self._cwd, environment=self._environment, new_capture=self._new_capture, box=self._box
            )
        return self._shell

    def _ready(self, cancel: int) -> Shell:
        """Return the shell once its box is found closed. Raises OSError, BoxRefused."""
        shell = self._started()
        try:
            shell.get_ready(cancel)
        except BoxRefused:
            self._drop_shell()
            raise
        return shell

    def _end_shell(self) -> int | None:
        shell, self._shell = self._shell, None
        return None if shell is None else shell.close(self._grace, self._spare)

    def _drop_shell(self) -> None:
        if (shell := self._shell) is not None:
            self._end_shell()
            shell.take_output().finish()


def _checked(wanted: _BashArguments) -> _BashArguments:
    if wanted.command is None and not wanted.restart:
        raise BadArgument("The argument `command` is missing: give the command to run, or `restart`.")
    if "\0" in (wanted.command or ""):
        raise BadArgument("The command holds a NUL character, which no shell takes: leave it out.")
    return wanted


def _late_output(capture: OutputCapture) -> list[str]:
    """Return the output of background processes between two commands, for the model."""
    text = capture.finish().strip("\n")
    return [f"[background processes had printed:]\n{text}\n[this command:]"] if text.strip() else []


def _how(code: int | None) -> str:
    how = how_it_ended(code)
    return how if code is None or code >= 0 else f"{how} (exit code {128 - code})"
