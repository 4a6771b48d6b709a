"""The live screen of `ls --watch`: runs as they change, and keys to look at, answer and stop them.

By itself the screen only reads. A key that changes a run first asks for a yes or for a text; pasted text is
not taken for keys.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from subagent_server.cli.console.asking import ask_person
from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.event_text import EventText
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.live_frame import Entry, View, entries_of, frame, help_lines
from subagent_server.cli.console.output import err
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.terminal_mode import TerminalMode
from subagent_server.cli.console.text import folded, wrapped
from subagent_server.cli.console.typed_keys import TypedKeys
from subagent_server.domain.errors import SubagentError
from subagent_server.host.host_programs import NoHostProgram
from subagent_server.host.journal import parse
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.service.changes import Changes
from subagent_server.service.live_runs import host_program
from subagent_server.service.open_run import open_run
from subagent_server.service.stop import stop
from subagent_server.service.trees import Node, trees_of
from subagent_server.store.logs import page

_LOG_EVENTS = 300
_FRESH_SECONDS = 1.0
"""Runs are read at most so often."""
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR = "\x1b[2J"


class LiveScreen:
    """The screen: the runs that it shows, and the actions of its keys."""

    def __init__(self, session: Session, run_ids: Callable[[], list[str]]) -> None:
        self._session = session
        self._run_ids = run_ids
        self._view = View()
        self._trees: list[Node] = []
        self._entries: list[Entry] = []
        self._read_at = 0.0
        self._log_of: str | None = None
        self._follows = True
        self._input: Callable[[str], None] | None = None
        """Takes the next key, in place of the list: a confirmation, or the words of the filter."""
        self._is_over = False

    def show(self) -> NoReturn:
        """Show the screen until the person leaves it.

        Raises:
            EarlyExit: it was left.
        """
        changes = Changes(self._session.service.store)
        try:
            with TerminalMode() as terminal:
                if self._session.service.store.paths.is_ours:  # watching must not create a runs root
                    changes.subscribe(lambda _: terminal.wake())
                self._live(terminal)
        except KeyboardInterrupt:
            raise EarlyExit(ExitCode.INTERRUPTED, "only the watching has ended, the runs go on.") from None
        finally:
            changes.close()
        raise EarlyExit(ExitCode.OK, "")

    def _live(self, terminal: TerminalMode) -> None:
        keys = TypedKeys()
        while not self._is_over:
            self._refresh()
            self._draw(terminal)
            patience = max(0.05, min(SLOW_POLL_SECONDS, self._read_at + _FRESH_SECONDS - time.monotonic()))
            typed = terminal.read(patience)
            if typed is None:
                return
            for key in keys.of(typed):
                self._press(key, terminal)

    # -- what is shown

    def _refresh(self) -> None:
        """Read the runs again, if that was not just done."""
        if time.monotonic() >= self._read_at + _FRESH_SECONDS:
            self._trees = trees_of(self._session.service, self._run_ids(), self._session.caller)
            self._read_at = time.monotonic()
        self._entries = entries_of(self._trees, self._view.wanted)
        ids = self._ids()
        if ids and self._view.selected not in ids:
            self._view.selected = ids[0]

    def _ids(self) -> list[str]:
        return [entry.row.run.run_id for entry in self._entries if entry.row is not None]

    def _draw(self, terminal: TerminalMode) -> None:
        """Draw over the previous frame without clearing it first, which would flicker."""
        width, height = terminal.size
        if self._log_of is not None:
            self._read_log(self._log_of, width, height)
        lines = frame(self._session.service.store.paths, self._entries, self._view, (width, height))
        start = _CLEAR if terminal.is_resized else ""
        terminal.is_resized = False
        body = "\n".join(line + _TO_END_OF_LINE for line in lines)
        terminal.draw(f"{start}{_HOME}{body}{_TO_END}".encode("utf-8", "replace"))

    def _read_log(self, run_id: str, width: int, height: int) -> None:
        """Make the page of the end of a log."""
        writer = EventText(whole_texts=True)
        try:
            found = page(self._session.service.store.paths.run(run_id).events, None, _LOG_EVENTS)
        except SubagentError as error:
            self._view.page = wrapped(for_people(error.sentence), max(1, width))
            return
        events = [event for line in found.lines if (event := parse(line)) is not None]
        lines = [line for event in events for line in writer.lines(event)]
        pieces = [piece for line in lines for piece in folded(line, width)]
        self._view.page = pieces or ["There is no log yet."]
        room = max(1, height - 3)
        last = max(0, len(self._view.page) - room)
        self._view.top = last if self._follows else min(self._view.top, last)

    # -- keys

    def _press(self, key: str, terminal: TerminalMode) -> None:
        self._view.remark = ""
        if key == "redraw":
            terminal.is_resized = True
        elif self._input is not None:
            self._input(key)
        elif key.startswith("paste:"):
            self._view.remark = "What was pasted is no key: nothing was done."
        elif self._view.page is not None:
            self._press_on_page(key, terminal)
        elif key in _MOVES:
            self._move(key, max(1, terminal.size[1] - 4))
        else:
            self._press_in_list(key, terminal)

    def _press_in_list(self, key: str, terminal: TerminalMode) -> None:
        run_id = self._view.selected
        if key == "q":
            self._is_over = True
        elif key == "?":
            self._open_page("keys", help_lines(terminal.size[0]))
        elif key == "/":
            self._begin_filter()
        elif key == "escape":
            self._view.wanted = ""
        elif run_id is None or run_id not in self._ids():
            return
        elif key in ("enter", "l"):
            self._log_of, self._follows = run_id, True
            self._open_page(f"log of {run_id}", [])
        elif key == "a":
            self._answer(run_id, terminal)
        elif key == "s":
            self._ask_to_stop(run_id)
        elif key == "o":
            self._open(run_id, terminal)

    def _press_on_page(self, key: str, terminal: TerminalMode) -> None:
        room = max(1, terminal.size[1] - 4)
        if key in ("q", "escape", "enter", "l"):
            self._view.page, self._log_of, self._view.top = None, None, 0
        elif key in _MOVES:
            length = len(self._view.page or ())
            steps = {"home": -length, "end": length, "page up": -room, "page down": room}
            step = steps.get(_MOVES[key], -1 if _MOVES[key] == "up" else 1)
            last = max(0, length - (terminal.size[1] - 3))
            self._view.top = max(0, min(last, self._view.top + step))
            self._follows = self._view.top == last

    def _open_page(self, title: str, lines: list[str]) -> None:
        self._view.page, self._view.title, self._view.top = lines, title, 0

    def _move(self, key: str, room: int) -> None:
        ids = self._ids()
        if not ids:
            return
        place = ids.index(self._view.selected) if self._view.selected in ids else 0
        steps = {"up": -1, "down": 1, "page up": -room, "page down": room, "home": -len(ids), "end": len(ids)}
        self._view.selected = ids[max(0, min(len(ids) - 1, place + steps[_MOVES[key]]))]

    def _begin_filter(self) -> None:
        self._view.wanted = ""
        self._view.prompt = "/"
        self._input = self._filter

    def _filter(self, key: str) -> None:
        view = self._view
        if key in ("enter", "escape"):
            view.wanted = "" if key == "escape" else view.wanted
            view.prompt = self._input = None
            return
        if key == "erase":
            view.wanted = view.wanted[:-1]
        elif key == "erase all":
            view.wanted = ""
        elif key.startswith("paste:"):
            view.wanted += " ".join(key.removeprefix("paste:").split())[:200]
        elif len(key) == 1 and key.isprintable():
            view.wanted += key
        view.prompt = f"/{view.wanted}"

    # -- what changes a run, or leaves the screen for a while

    def _ask_to_stop(self, run_id: str) -> None:
        self._view.prompt = f"Stop {run_id} and all that it has started? y or n"

        def take(key: str) -> None:
            self._view.prompt = self._input = None
            if key != "y":
                self._view.remark = "Nothing was stopped."
                return
            self._do(lambda: stop(self._session.service, run_id, None, self._session.leader()))
            self._view.remark = self._view.remark or f"{run_id} is being stopped."

        self._input = take

    def _answer(self, run_id: str, terminal: TerminalMode) -> None:
        def ask() -> None:
            pending = open_run(self._session.service, run_id, self._session.caller).meta.pending
            if not pending:
                self._view.remark = f"{run_id} asks nothing."
                return
            with terminal.left():
                try:
                    ask_person(self._session, run_id, pending[0])
                except KeyboardInterrupt:
                    err("")  # the question stays open, and the list comes back

        self._do(ask)

    def _open(self, run_id: str, terminal: TerminalMode) -> None:
        """Show everything about a run in the pager of the person."""
        root = str(self._session.settings.runs_root)
        command = [sys.executable, "-P", "-m", "subagent_server", "--runs", root]
        with terminal.left():
            shown = subprocess.run(
                [*command, "show", run_id], capture_output=True, check=False, cwd=self._session.settings.cwd
            )
            self._page_through(shown.stdout or shown.stderr)

    def _page_through(self, text: bytes) -> None:
        """Show a text in $PAGER, else in less, else until Enter is pressed."""
        pager = shlex.split(os.environ.get("PAGER") or "less -R")
        with suppress(NoHostProgram, IndexError):
            program = host_program(self._session.settings, pager[0])
            subprocess.run([program, *pager[1:]], input=text, check=False)
            return
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        err("Enter goes back.")
        sys.stdin.readline()

    def _do(self, act: Callable[[], object]) -> None:
        """Call `act`; what it refuses is said in the last line."""
        try:
            act()
        except SubagentError as error:
            self._view.remark = for_people(error.sentence)
        self._read_at = 0.0


_MOVES = {
    **{key: key for key in ("up", "down", "page up", "page down", "home", "end")},
    "k": "up",
    "j": "down",
    " ": "page down",
    "g": "home",
    "G": "end",
}
