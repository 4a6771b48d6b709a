"""Draws the picture of a terminal in docs/: `make picture`.

`docs/demo.svg` moves: `subagent demo` as it really ran, line by line, with shorter pauses.
`--still SECONDS FILE` writes the film as it stands at that moment, for a look at its frames.
"""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from tests.helpers.forked import PROGRAM
from tests.helpers.processes import REPOSITORY

COLUMNS = 100
PAUSES = (0.12, 1.1)
"""The shortest and the longest pause between two lines of the film, in seconds."""
PAUSE_AT_QUESTION = 2.2
LAST_SECONDS = 7.0
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.S)


class Line(NamedTuple):
    """A line of the terminal, with its colours, and when it is shown, in seconds from the beginning."""

    shown: float
    text: Text


def drawn(rows: list[Text], title: str) -> str:
    """Return a picture of a terminal with these rows, which fit it."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for row in rows:
        console.print(row, no_wrap=True, overflow="crop")
    return _FONTS.sub("", console.export_svg(title=title, unique_id="screen")).rstrip() + "\n"


def spoken(home: Path) -> Iterator[tuple[float, str]]:
    """Run the demo on a terminal, outside of a repository, and yield its lines with the moments they came."""
    outer, inner = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }
    rest = b""
    with subprocess.Popen([*PROGRAM, "demo"], cwd=home, env=environment, stdout=inner, stderr=inner) as demo:
        os.close(inner)
        with suppress(OSError):  # the terminal has no other end any more
            while part := os.read(outer, 1 << 16):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield time.monotonic(), line.decode().rstrip("\r")
    os.close(outer)
    assert demo.returncode == 0, "the demo failed"


def film(home: Path) -> list[Line]:
    """Return the lines of the demo, with the pauses of the film in place of the real ones."""
    moment, last, lines = 1.0, 0.0, [Line(0.0, Text("$ subagent demo", style="bold"))]
    for came, line in spoken(home):
        pause = min(max(came - last, PAUSES[0]), PAUSES[1])
        last = came
        moment += PAUSE_AT_QUESTION if lines[-1].text.plain.startswith("parent ← asks") else pause
        lines.append(Line(moment, Text.from_ansi(line)))
    return lines


def moving(lines: list[Line], title: str, still: float | None = None) -> str:
    """Return a picture in which each row appears at its time, over and over; `still`: as at that second.

    Where nothing moves, by the viewer's wish or for lack of means, all rows are there.
    """
    console = Console(width=COLUMNS, file=StringIO())
    rows = [Line(each.shown, row) for each in lines for row in each.text.wrap(console, COLUMNS) or [Text()]]
    if still is not None:
        return drawn([row.text if row.shown <= still else Text() for row in rows], title)
    seconds = rows[-1].shown + LAST_SECONDS
    rules = []
    for number, row in enumerate(rows):
        share = 100 * row.shown / seconds
        rules.append(
            f"@keyframes row{number} {{0%,{share:.2f}% {{opacity:0}} {share + 0.01:.2f}%,100% {{opacity:1}}}}"
        )
        rules.append(
            f"g[clip-path] [clip-path='url(#screen-line-{number})'] "
            f"{{animation:row{number} {seconds:.1f}s step-end infinite}}"
        )
    rules.append(
        "@media (prefers-reduced-motion: reduce) {g[clip-path] [clip-path] {animation:none !important}}"
    )
    return drawn([row.text for row in rows], title).replace("</style>", "\n".join([*rules, "</style>"]), 1)


def main(words: list[str]) -> None:
    """Write the film, or one frame of it."""
    with TemporaryDirectory() as directory:
        home = Path(directory, "shop")
        home.mkdir()
        if words[:1] == ["--still"]:
            text = moving(film(home), "subagent demo", still=float(words[1]))
            Path(words[2]).write_text(text, encoding="utf-8")
            return
        text = moving(film(home), "subagent demo")
        (REPOSITORY / "docs" / "demo.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
