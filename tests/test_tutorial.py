"""Every command of the tutorial does what its screen shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "tutorial.md"
BOUND = 500.0
_PART = re.compile(r"into `([\w./-]+)`:\n\n```\w+\n(.*?)^```$|^```console\n(.*?)^```$", re.M | re.S)
_VARIES = (
    (re.compile(r"\d{8}-\d{6}-\d{3}-\w{6}"), "RUN"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b|\b[\d.]+ ?m?s\b|[\d,]+ tokens"), "N"),
    (re.compile(r"(/[\w.-]+)+/shop\b"), "SHOP"),
    (re.compile(r"\s+"), " "),
)


def alike(line: str) -> str:
    """Return a line without what differs from run to run: ids, times, sizes, places, widths of columns."""
    for pattern, name in _VARIES:
        line = pattern.sub(name, line)
    return line.strip()


def expected(screens: list[str]) -> list[tuple[str, list[str]]]:
    """Return the commands of all screens, each with the lines that it has to print."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(screens).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line != "...":
            found[-1][1].append(alike(line))
    return found


@pytest.mark.timeout(600)
def test_the_commands_of_the_tutorial_print_what_their_screens_show(tmp_path: Path) -> None:
    parts = _PART.findall(PAGE.read_text(encoding="utf-8"))
    steps: list[tuple[str, list[str]]] = []
    for name, content, screen in parts:
        steps += [(f"cat > {name} <<'END_OF_FILE'\n{content}END_OF_FILE", [])] if name else expected([screen])
    mark = "== step "
    script = "".join(
        f"echo '{mark}{number}'\n(exit $code)\n{words}\ncode=$?\n" for number, (words, _) in enumerate(steps)
    )
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"code=0\n{script}"],
        cwd=tmp_path,
        env={**kept, "PATH": path, "HOME": str(tmp_path), "COLUMNS": "100", **warm.settings()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
    )
    screens = re.split(rf"^{mark}\d+\n", done.stdout, flags=re.M)[1:]
    assert len(screens) == len(steps) > 20
    for (words, lines), screen in zip(steps, screens, strict=True):
        printed = iter([alike(line) for line in screen.splitlines()])
        missing = [line for line in lines if line not in printed]
        assert not missing, f"$ {words}\nlacks {missing} in this order:\n{screen}"
