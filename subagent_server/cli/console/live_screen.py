"""The live screen of `ls --watch`: its frame, the mode of the terminal, the keys, and what they do."""

import codecs
import errno
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from types import FrameType
from typing import NoReturn

from subagent_server.cli.console.app import Session
from subagent_server.cli.console.follow import Wakeup, interrupts_kept
from subagent_server.cli.console.terminal import (
    PLAIN,
    EarlyExit,
    ExitCode,
    coloured,
    cost_cell,
    cut,
    err,
    folded,
    for_people,
    has_colours,
    look_of,
    one_line,
    padded,
    width_of,
    wrapped,
)
from subagent_server.cli.inbox import ask_person
from subagent_server.cli.logs import EventText
from subagent_server.cli.ls import GROUPS, age_cell, branch, group_of, look_of_row, what_cell
from subagent_server.cli.show import show_run
from subagent_server.run.errors import SubagentError
from subagent_server.run.files import write_all
from subagent_server.run.journal import page
from subagent_server.run.paths import RootPaths
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.list_runs import Node, trees_of
from subagent_server.verbs.views import RunRow
from subagent_server.verbs.wait_for_runs import Changes

WIDE = 100
NARROW = 72
_REVERSE = "\x1b[7m"
_KEYS = "↑↓ move  enter log  a answer  s stop  o open  / filter  ? help  q quit"
_SHORT_KEYS = "enter log  a answer  s stop  / filter  ? help  q quit"
_HELP = (
    ("up, down, j, k", "move; page up and page down, home and end go further"),
    ("enter, l", "look at the log of the run; q goes back"),
    ("a", "answer its question"),
    ("s", "stop it and all that it has started; asks first"),
    ("o", "open everything about it; q goes back"),
    ("/", "show only runs with these words; escape shows all"),
    ("q, Ctrl-C", "leave; the runs continue"),
    ("Ctrl-Z", "put aside; fg comes back"),
)
_HELP_END = "Nothing here changes a run unless you answer or stop it."
_KEY_WIDTH = 16
_LEAST_HELP = 20


@dataclass(frozen=True)
class ListLine:
    """A line of the list: a run with its depth in its tree, or the heading of a group."""

    group: str
    depth: int = 0
    node: Node | None = None


@dataclass
class View:
    """The state of the screen besides the runs: selection, filter, input, remark, page."""

    selected: str | None = None
    top: int = 0
    wanted: str = ""
    prompt: str | None = None
    """A question or input in the last line, instead of the keys."""
    remark: str = ""
    page: list[str] | None = None
    """The lines of a page over the list, as wide as the screen: a log, everything about a run, or help."""
    title: str = ""


def help_lines(width: int) -> list[str]:
    """Return what the keys do, in lines that fit the width."""
    room = max(_LEAST_HELP, width - _KEY_WIDTH - 2)
    lines: list[str] = []
    for keys, does in _HELP:
        first, *rest = wrapped(does, room)
        lines += [f"  {keys:<{_KEY_WIDTH}}{first}", *(f"  {'':<{_KEY_WIDTH}}{line}" for line in rest)]
    return [*lines, "", *(f"  {line}" for line in wrapped(_HELP_END, max(_LEAST_HELP, width - 2)))]


def entries_of(trees: Sequence[Node], wanted: str) -> list[ListLine]:
    """Return the lines of the list: groups of trees; with `wanted`, only runs that have these words."""
    entries: list[ListLine] = []
    for name in GROUPS:
        group = [
            ListLine(name, depth, node)
            for tree in trees
            if group_of(tree) == name
            for depth, node in tree.walk()
            if _fits(node.run, wanted)
        ]
        entries += [ListLine(name), *group] if group else []
    return entries


def _fits(run: RunRow, wanted: str) -> bool:
    look = look_of_row(run)
    text = " ".join(filter(None, (run.run_id, run.agent, run.label, run.summary, look.word))).casefold()
    return all(word in text for word in wanted.casefold().split())


def frame(root: RootPaths, entries: Sequence[ListLine], view: View, size: tuple[int, int]) -> list[str]:
    """Return the lines of the screen, as many as it has, each at most as wide."""
    width, height = size
    room = max(1, height - 3)
    if view.page is not None:
        body = view.page[view.top :][:room]
        head = [_bar(view.title, width), ""]
    else:
        head = [_bar(_summary(entries, view), width), _cells_line(_HEADER, width, colour="bold")]
        body = _body(root, entries, view, width, room)
    lines = [*head, *body, *[""] * (room - len(body)), _last_line(view, width)]
    return lines[: height - 1] + lines[-1:] if len(lines) > height else lines


def _body(root: RootPaths, entries: Sequence[ListLine], view: View, width: int, room: int) -> list[str]:
    if not entries:
        none = "No run has these words: escape shows all." if view.wanted else "No runs yet."
        return [cut(none, width)]
    index = next((n for n, entry in enumerate(entries) if _id(entry) == view.selected), 0)
    first = 0 if index <= 1 else index  # the heading of the first group stays in sight
    view.top = max(0, min(view.top, first, len(entries) - room), index - room + 1)
    return [
        _line(root, entry, width, is_selected=_id(entry) == view.selected)
        for entry in entries[view.top : view.top + room]
    ]


def _id(entry: ListLine) -> str | None:
    return None if entry.node is None else entry.node.run.run_id


_HEADER = ("", "RUN", "AGENT", "AGE", "COST", "WHAT")


def _line(root: RootPaths, entry: ListLine, width: int, *, is_selected: bool) -> str:
    if entry.node is None:
        return coloured(cut(entry.group, width), "bold")
    run = entry.node.run
    look = look_of_row(run)
    cells = (
        look.text,
        run.run_id.rpartition("-")[2],
        branch(min(entry.depth, 4)) + one_line(run.agent or ""),
        age_cell(run),
        cost_cell(entry.node.with_descendants),
        what_cell(root, run),
    )
    return _cells_line(cells, width, colour=look.colour, is_selected=is_selected)


def _cells_line(cells: Sequence[str], width: int, *, colour: str, is_selected: bool = False) -> str:
    """Return a row in columns that fit the width: narrow screens have the mark of a status alone."""
    status, run, agent, age, cost, what = cells
    state = 11 if width >= NARROW else 1
    agent_width = 18 if width >= WIDE else 12
    first = padded(status if state > 1 else status[:1], state)
    middle = "  ".join(
        [padded(run, 6), padded(agent, agent_width), f"{cut(age, 4):>4}", f"{cut(cost, 7):>7}"]
    )
    begin = f"{'▸ ' if is_selected else '  '}{first}"
    rest = f"  {middle}  {what}"
    whole = cut(begin + rest, width)
    if colour == "bold":
        return coloured(whole, "bold")
    if is_selected and has_colours():
        return f"{_REVERSE}{padded(whole, width)}{PLAIN}"
    return whole.replace(first.rstrip(), coloured(first.rstrip(), colour), 1)


def _summary(entries: Sequence[ListLine], view: View) -> str:
    counts = {name: sum(each.group == name and each.node is not None for each in entries) for name in GROUPS}
    words = [f"{number} {name}" for name, number in counts.items() if number] or ["no runs"]
    shown = f"  /{one_line(view.wanted)}" if view.wanted and view.prompt is None else ""
    return f"subagent  {' · '.join(words)}{shown}"


def _bar(text: str, width: int) -> str:
    return coloured(cut(one_line(text), width), "bold")


def _last_line(view: View, width: int) -> str:
    if view.prompt is not None:
        return cut(one_line(view.prompt), width)
    if view.remark:
        return cut(one_line(view.remark), width)
    if view.page is not None:
        return coloured(cut("↑↓ scroll  end follow  q back", width), "grey")
    return coloured(cut(_KEYS if width >= width_of(_KEYS) else _SHORT_KEYS, width), "grey")


# -- Switch the terminal to a full screen, and restore it however the command ends.
#
# The terminal is restored at the end of the block, at the signals that end the command, which then end it as
# usual, and at Ctrl-Z, after which `fg` enters the screen again.


_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?2004h"
"""The other page of the terminal, without a cursor; a paste comes in brackets."""
_LEAVE = b"\x1b[0m\x1b[?2004l\x1b[?25h\r\x1b[K\x1b[?1049l"
"""Where there is no other page, as in GNU screen, the prompt overwrites the line of keys."""
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class EndedBySignal(BaseException):
    """A signal that ends the command; the terminal is restored on the way out."""


class TerminalMode:
    """The terminal at stdin and stdout, in the mode of a full screen. A context manager."""

    def __init__(self) -> None:
        self._stdin, self._stdout = sys.stdin.fileno(), sys.stdout.fileno()
        self._before = termios.tcgetattr(self._stdin)
        self._handlers: dict[int, object] = {}
        self._wakeup = Wakeup()
        self._is_entered = False
        self._ended_by: int | None = None
        self.is_resized = True
        """Whether the size may be another, or the page was left meanwhile: all of it is to be drawn anew."""

    def __enter__(self) -> "TerminalMode":
        for number in (*_ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._handlers[number] = signal.signal(number, self._hear)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def end_if_signalled(self) -> None:
        """End this process by the signal that ends the screen, if one has come.

        Its exception may have come at the entry of `__exit__`, or in a finalizer, where Python drops it.
        """
        if self._ended_by is not None:
            self._restore()
            signal.signal(self._ended_by, signal.SIG_DFL)
            os.kill(os.getpid(), self._ended_by)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._is_entered:
            self._leave()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Restore the terminal for another program or a question, then enter the screen again."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines of the terminal now."""
        try:
            found = os.get_terminal_size(self._stdout)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def wake(self) -> None:
        """End a wait for input, from any thread."""
        self._wakeup.set()

    def read(self, seconds: float) -> bytes:
        """Return what was typed within this time: nothing if woken."""
        if self._ended_by is not None:  # by a signal that came in a finalizer, where Python drops exceptions
            raise EndedBySignal
        ready, _, _ = select.select([self._stdin, self._wakeup], [], [], seconds)
        self._wakeup.clear()
        if self._stdin not in ready:
            return b""
        with self._hung_up():
            if typed := os.read(self._stdin, 4096):
                return typed
            raise OSError(errno.EIO, "the end of a terminal")

    def draw(self, data: bytes) -> None:
        """Write to the terminal."""
        with self._hung_up():
            write_all(self._stdout, data)

    @contextmanager
    def _hung_up(self) -> Iterator[None]:
        """End the screen where the terminal has gone, also if its SIGHUP has not come, or comes too late."""
        try:
            yield
        except (OSError, termios.error) as error:
            self._ended_by = signal.SIGHUP
            raise EndedBySignal from error

    def _enter(self) -> None:
        with self._hung_up():
            tty.setcbreak(self._stdin, termios.TCSANOW)
        self.draw(_ENTER)
        self._is_entered = self.is_resized = True

    def _leave(self) -> None:
        self._is_entered = False
        with suppress(OSError, termios.error):  # the terminal itself may be gone
            os.write(self._stdout, _LEAVE)
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._ended_by is not None:
            return
        if number in _ENDING:
            self._ended_by = number
            raise EndedBySignal
        was_entered = self._is_entered
        if number == signal.SIGTSTP:
            if was_entered:
                self._leave()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # this process is stopped here until SIGCONT
            signal.signal(signal.SIGTSTP, self._hear)
        if number in (signal.SIGTSTP, signal.SIGCONT) and was_entered:
            self._enter()
        self.is_resized = True
        self.wake()


# -- Decode the bytes of a terminal into names of special keys, characters, and pastes as one piece.


_SPECIAL = {
    b"[A": "up",
    b"[B": "down",
    b"OA": "up",
    b"OB": "down",
    b"[5~": "page up",
    b"[6~": "page down",
    b"[H": "home",
    b"OH": "home",
    b"[1~": "home",
    b"[F": "end",
    b"OF": "end",
    b"[4~": "end",
}
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGIN_PASTE, _END_PASTE = b"\x1b[200~", b"\x1b[201~"
_MOST_PASTED = 10_000
_NAMES = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "erase",
    "\x08": "erase",
    "\x15": "erase all",
    "\x0c": "redraw",
}


class TypedKeys:
    """Reads keys from the bytes of the terminal, piece by piece. A pasted text is not a key."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pasted: bytes | None = None

    def of(self, data: bytes) -> list[str]:
        """Return the keys that were pressed: names, or one character each; a paste begins with `paste:`."""
        keys: list[str] = []
        while data:
            if self._pasted is not None:
                data = self._paste(data, keys)
            elif data.startswith(_BEGIN_PASTE):
                self._pasted, data = b"", data[len(_BEGIN_PASTE) :]
            elif found := _SEQUENCE.match(data):
                keys += [_SPECIAL[found[1]]] if found[1] in _SPECIAL else []
                data = data[found.end() :]
            elif data[:1] == b"\x1b":
                keys.append("escape")
                data = data[1:]
            else:
                text, _, _ = data.partition(b"\x1b")
                keys += [_NAMES.get(c, c) for c in self._decoder.decode(text)]
                data = data[len(text) :]
        return keys

    def _paste(self, data: bytes, keys: list[str]) -> bytes:
        """Take a part of a paste; return what comes behind its end."""
        whole = (self._pasted or b"") + data
        text, end, rest = whole.partition(_END_PASTE)
        if not end:
            begun = max(_MOST_PASTED, len(whole) - len(_END_PASTE) + 1)  # its end may be cut in two
            self._pasted = whole[:_MOST_PASTED] + whole[begun:]
            return b""
        self._pasted = None
        keys.append(f"paste:{text.decode('utf-8', 'replace')}")
        return rest


# -- The live screen of `ls --watch`: runs as they change, and keys to look at, answer and stop them.
#
# By itself the screen only reads. A key that changes a run first asks for a yes or for a text; pasted text
# is not taken for keys.


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
        self._entries: list[ListLine] = []
        self._read_at = 0.0
        self._page_of: Callable[[int], list[str]] | None = None
        """Makes the page over the list for a width: at each frame, as a log grows and a window changes."""
        self._follows = False
        self._input: Callable[[str], None] | None = None
        """Takes the next key, instead of the list: a confirmation, or the words of the filter."""
        self._is_over = False

    def show(self) -> NoReturn:
        """Show the screen until the person leaves it.

        Raises:
            EarlyExit: it was left.
        """
        terminal, changes = TerminalMode(), Changes(self._session.service.store)
        try:
            with terminal:
                changes.add(lambda _: terminal.wake())
                changes.watch()
                self._live(terminal)
        except KeyboardInterrupt:
            raise EarlyExit(ExitCode.INTERRUPTED, "only the watching has ended, the runs continue.") from None
        finally:
            terminal.end_if_signalled()
            changes.close()
        raise EarlyExit(ExitCode.OK, "")

    def _live(self, terminal: TerminalMode) -> None:
        keys = TypedKeys()
        with interrupts_kept() as check_interrupt:
            while not self._is_over:
                self._refresh()
                self._draw(terminal)
                check_interrupt()
                fresh_until = self._read_at + _FRESH_SECONDS
                patience = max(0.05, min(SLOW_POLL_SECONDS, fresh_until - time.monotonic()))
                for key in keys.of(terminal.read(patience)):
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
        return [entry.node.run.run_id for entry in self._entries if entry.node is not None]

    def _draw(self, terminal: TerminalMode) -> None:
        """Draw over the previous frame without clearing it first, which would flicker."""
        width, height = terminal.size
        if self._page_of is not None:
            self._view.page = self._page_of(width)
            last = max(0, len(self._view.page) - max(1, height - 3))
            self._view.top = last if self._follows else min(self._view.top, last)
        lines = frame(self._session.service.store.paths, self._entries, self._view, (width, height))
        start = _CLEAR if terminal.is_resized else ""
        terminal.is_resized = False
        body = "\n".join(line + _TO_END_OF_LINE for line in lines)
        terminal.draw(f"{start}{_HOME}{body}{_TO_END}".encode("utf-8", "replace"))

    def _log_lines(self, run_id: str, width: int) -> list[str]:
        """Return the end of a log."""
        writer = EventText(whole_texts=True)
        try:
            found = page(self._session.service.store.paths.run(run_id).events, None, _LOG_EVENTS)
        except SubagentError as error:
            return wrapped(for_people(error.sentence), max(1, width))
        lines = [each for line in found.lines for each in writer.lines_of(line)]
        return _folded_lines(lines, width) or ["There is no log yet."]

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
            self._open_page("keys", help_lines)
        elif key == "/":
            self._begin_filter()
        elif key == "escape":
            self._view.wanted = ""
        elif run_id is None or run_id not in self._ids():
            return
        elif key in ("enter", "l"):
            self._open_page(f"log of {run_id}", partial(self._log_lines, run_id), follows=True)
        elif key == "a":
            self._answer(run_id, terminal)
        elif key == "s":
            self._ask_to_stop(run_id)
        elif key == "o":
            self._open(run_id)

    def _press_on_page(self, key: str, terminal: TerminalMode) -> None:
        room = max(1, terminal.size[1] - 4)
        if key in ("q", "escape", "enter", "l"):
            self._view.page, self._page_of, self._view.top = None, None, 0
        elif key in _MOVES:
            length = len(self._view.page or ())
            last = max(0, length - (terminal.size[1] - 3))
            self._view.top = max(0, min(last, self._view.top + _step(key, room, length)))
            self._follows = self._view.top == last

    def _open_page(self, title: str, page_of: Callable[[int], list[str]], *, follows: bool = False) -> None:
        self._page_of, self._follows = page_of, follows
        self._view.page, self._view.title, self._view.top = [], title, 0

    def _move(self, key: str, room: int) -> None:
        ids = self._ids()
        if not ids:
            return
        index = ids.index(self._view.selected) if self._view.selected in ids else 0
        self._view.selected = ids[max(0, min(len(ids) - 1, index + _step(key, room, len(ids))))]

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

        def stop_it() -> None:
            found = stop(self._session.service, run_id, None, self._session.leader())
            self._view.remark = f"{run_id}: {look_of(found.meta.status, 0, found.live).word}"

        def take(key: str) -> None:
            self._view.prompt = self._input = None
            if key != "y":
                self._view.remark = "Nothing was stopped."
                return
            self._do(stop_it)

        self._input = take

    def _answer(self, run_id: str, terminal: TerminalMode) -> None:
        def ask() -> None:
            pending = self._session.open_run(run_id).meta.pending
            if not pending:
                self._view.remark = f"{run_id} asks nothing."
                return
            with terminal.left(), interrupts_kept():
                try:
                    ask_person(self._session, run_id, pending[0])
                except KeyboardInterrupt:
                    err("")  # the question stays open, and the list comes back

        self._do(ask)

    def _open(self, run_id: str) -> None:
        """Show everything about a run, as the command does."""
        with redirect_stdout(StringIO()) as shown:
            self._do(lambda: show_run(self._session, self._session.open_run(run_id)))
        if text := shown.getvalue():  # else the last line shows why
            self._open_page(run_id, cache(partial(_folded_lines, text.splitlines())))

    def _do(self, act: Callable[[], object]) -> None:
        """Call `act`; what it refuses is shown in the last line."""
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


def _folded_lines(lines: list[str], width: int) -> list[str]:
    return [piece for line in lines for piece in folded(line, width)]


def _step(key: str, room: int, length: int) -> int:
    """Return how many lines a key moves by, with `room` for that many of the `length` lines."""
    steps = {"up": -1, "down": 1, "page up": -room, "page down": room, "home": -length, "end": length}
    return steps[_MOVES[key]]
