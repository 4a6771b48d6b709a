"""The live screen of `ls --watch`, through a real terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from subagent_server.cli.console.live_screen import TypedKeys, help_lines
from subagent_server.cli.console.terminal import width_of
from subagent_server.run.states import Status
from tests.cli.command import BOUND, Cli, asked
from tests.helpers.forked import PROGRAM, popen
from tests.helpers.wait import wait_for

ENTER, LEAVE = "\x1b[?1049h", "\r\x1b[K\x1b[?1049l"  # GNU screen has one page: the prompt needs a line
WIDE = "漢字" * 30
RIGHT_TO_LEFT = "שלום עולם " * 9


class Screen:
    """`ls --watch` on a terminal of its own, with what it has drawn."""

    def __init__(self, process: "subprocess.Popen[bytes]", outer: int, inner: int, before: list[Any]) -> None:
        self.process = process
        self.inner = inner
        self.before = before
        self.drawn = ""
        self._outer = outer

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._outer, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, as its window does."""
        termios.tcsetwinsize(self._outer, (lines, columns))
        self.process.send_signal(signal.SIGWINCH)

    def close(self) -> None:
        """Close the window: the terminal is gone, and the signals of that are all pending at once."""
        self.process.send_signal(signal.SIGSTOP)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), self._outer)
        self.process.send_signal(signal.SIGHUP)
        self.process.send_signal(signal.SIGCONT)

    def frame(self) -> list[str]:
        """Return the lines of the last frame that was drawn whole, without colours."""
        whole = [each for each in self.drawn.split("\x1b[H") if "\x1b[J" in each]
        last = whole[-1].partition("\x1b[J")[0] if whole else ""
        return [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in last.split("\r\n")]

    def until(self, wanted: str, *, without: str = "\0") -> list[str]:
        """Return the first frame that holds `wanted` and lacks `without`."""
        deadline = time.monotonic() + BOUND
        while True:
            frame = self.frame()
            if any(wanted in line for line in frame) and not any(without in line for line in frame):
                return frame
            self.listen(deadline - time.monotonic(), f"{wanted!r} in {frame}")

    def listen(self, seconds: float, awaited: str) -> None:
        """Take what the terminal shows next."""
        ready, _, _ = select.select([self._outer], [], [], max(0.0, seconds))
        assert ready, f"no {awaited}"
        self.drawn += os.read(self._outer, 1 << 16).decode("utf-8", "replace")

    def hear(self, wanted: str) -> None:
        """Return when `wanted` was written, and forget what came before."""
        deadline = time.monotonic() + BOUND
        while wanted not in self.drawn:
            self.listen(deadline - time.monotonic(), repr(wanted))
        self.drawn = self.drawn.partition(wanted)[2]


@contextmanager
def watched(cli: Cli, columns: int = 80, lines: int = 20, **environment: str) -> Iterator[Screen]:
    """Start `ls --watch` on a terminal of this size."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(outer, (lines, columns))
    before = termios.tcgetattr(inner)
    kept = {name: value for name, value in cli.environment.items() if name not in ("COLUMNS", "LINES")}
    process = popen(
        [*PROGRAM, "ls", "--watch"],
        {**kept, "TERM": "xterm", **environment},
        cwd=cli.home,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        process_group=0,
    )
    try:
        yield Screen(process, outer, inner, before)
    finally:
        process.kill()
        process.wait(BOUND)
        os.close(outer)
        os.close(inner)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_frames_fit_every_size_of_terminal(cli: Cli, environment: dict[str, str]) -> None:
    cli.completed("aaaaaa", f"Fine \x1b[2J. {WIDE}", agent_name=WIDE[:20], label=RIGHT_TO_LEFT)
    with (
        cli.living("bbbbbb", asked(), agent_name="an-agent-of-long-name") as asking,
        watched(cli, 60, 12, **environment) as screen,
    ):
        cli.record(asking, ("question", {"question": f"Which\x1b[2J\u202e colour? {WIDE}"}))
        for columns, lines in ((60, 12), (120, 30), (80, 24), (20, 5)):
            screen.resize(columns, lines)
            deadline = time.monotonic() + BOUND
            while len(frame := screen.frame()) != lines or "▸" not in "".join(frame):
                screen.listen(deadline - time.monotonic(), f"a frame of {lines} lines")
            assert max(map(width_of, frame)) <= columns
            assert all(c.isprintable() for line in frame for c in line)
            if columns >= 60:
                screen.until("Which\\x1b[2J\\u202e" if columns > 60 else "Which")
                screen.until("aaaaaa")
        coloured = set(re.findall(r"\x1b\[[0-9;]*m", screen.drawn))
        assert bool(coloured) == (not environment)


@pytest.mark.parametrize("columns", [40, 60, 120])
def test_the_help_is_whole_on_a_narrow_screen_too(columns: int) -> None:
    lines = help_lines(columns)
    assert max(map(width_of, lines)) <= columns
    assert "page up and page down, home and end go further" in " ".join(" ".join(lines).split())


def test_a_page_is_broken_anew_when_the_window_changes(cli: Cli) -> None:
    cli.completed("aaaaaa", f"All is {'good ' * 30}now.")
    with watched(cli, 100, 40) as screen:
        screen.until("aaaaaa")
        screen.type("o")
        screen.until("now.")
        screen.resize(40, 40)
        screen.until("now.", without="good " * 10)


def test_keys_look_filter_answer_and_stop_and_nothing_else_changes_a_run(cli: Cli) -> None:
    cli.completed("cccccc", "All good.", agent_name="reviewer")
    with (
        cli.living("aaaaaa", asked("Which colour?", "blue", "red")) as asking,
        cli.living("bbbbbb") as working,
        watched(cli, 100, 24) as screen,
    ):
        screen.until("▸ ? needs you  aaaaaa")
        screen.type("\x1b[B")
        screen.until("▸ ● running    bbbbbb")
        screen.type("j\r")
        screen.until("log of 20", without="needs you")
        screen.type("qo")
        screen.until("result    All good.", without="needs you")
        screen.type("qGsy")
        screen.until("cccccc: completed")
        screen.type("/GOOD")
        screen.until("/GOOD", without="bbbbbb")
        screen.type("\x1b")
        screen.until("bbbbbb")
        screen.type("\x1b[200~sy\x1b[201~")
        screen.until("What was pasted is no key")
        screen.type("g")
        screen.until("▸ ? needs you  aaaaaa")
        before = (cli.meta(asking), cli.meta(working))
        screen.type("sn")
        screen.until("Nothing was stopped.")
        assert (cli.meta(asking), cli.meta(working)) == before, "looking and a no have changed a run"
        screen.type("a")
        screen.hear("Your answer")
        screen.type("2\n")
        screen.until("▸ ● answered   aaaaaa")
        screen.type("s")
        screen.until("Stop 20261122-093015-417-aaaaaa and all that it has started?")
        screen.type("y")
        wait_for(lambda: cli.meta(asking).status is Status.STOPPED, BOUND, "the stop")
        screen.type("?")
        screen.until("put aside; fg comes back")
        screen.type("qq")
        assert screen.process.wait(BOUND) == 0
    assert cli.meta(asking).messages[0].answer_content == "red"
    assert cli.meta(working).status is Status.RUNNING


@pytest.mark.parametrize(
    ("way", "code"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGQUIT, -3)]
)
def test_the_terminal_is_as_it_was_whatever_ends_the_screen(
    cli: Cli, way: str | signal.Signals, code: int
) -> None:
    cli.completed("aaaaaa")
    with watched(cli) as screen:
        screen.until("aaaaaa")
        assert termios.tcgetattr(screen.inner) != screen.before
        if isinstance(way, str):
            screen.type(way)
        else:
            screen.process.send_signal(way)
        screen.hear(LEAVE)
        assert screen.process.wait(BOUND) == code
        wait_for(lambda: termios.tcgetattr(screen.inner) == screen.before, BOUND, "the terminal as it was")


def test_a_terminal_that_goes_ends_the_screen_by_its_signal(cli: Cli) -> None:
    cli.completed("aaaaaa")
    with watched(cli) as screen:
        screen.until("aaaaaa")
        screen.close()
        assert screen.process.wait(BOUND) == -signal.SIGHUP


def test_the_screen_can_be_put_aside_and_comes_back(cli: Cli) -> None:
    cli.completed("aaaaaa")
    with watched(cli) as screen:
        screen.until("aaaaaa")
        screen.process.send_signal(signal.SIGTSTP)
        screen.hear(LEAVE)
        state = Path(f"/proc/{screen.process.pid}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", BOUND, "a stopped command")
        assert termios.tcgetattr(screen.inner) == screen.before
        screen.process.send_signal(signal.SIGCONT)
        screen.hear(ENTER)
        screen.until("aaaaaa")
        screen.type("q")
        assert screen.process.wait(BOUND) == 0


@pytest.mark.parametrize(
    ("pieces", "keys"),
    [
        ([b"\x1b[A", b"\x1bOB", b"\x1b[5~"], ["up", "down", "page up"]),
        ([b"\x1b"], ["escape"]),
        (["ä".encode()[:1], "ä".encode()[1:]], ["ä"]),
        ([b"\x1b[200~s", b"y\x1b[201~q"], ["paste:sy", "q"]),
        ([b"\x1b[200~" + b"s" * 9_999, b"y" * 2_000 + b"\x1b[20", b"1~q"], [f"paste:{'s' * 9_999}yy", "q"]),
        ([b"\x1b[99;1u\x1b[<0;1;2Mx"], ["x"]),
        ([b"\r\x7f"], ["enter", "erase"]),
    ],
)
def test_keys_are_read_piece_by_piece(pieces: list[bytes], keys: list[str]) -> None:
    typed = TypedKeys()
    assert [key for piece in pieces for key in typed.of(piece)] == keys
