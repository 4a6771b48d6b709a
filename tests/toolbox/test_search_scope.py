"""Where `grep` and `glob` look: never in a runs root, whatever its name and whatever the arguments."""

import os
import shutil
from pathlib import Path

import pytest

from subagent_server.run.paths import is_marked, make_root
from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import GlobTool, GrepTool
from subagent_server.toolbox.tool import Tool
from tests.toolbox.calls import fault_of, text_of

FOUND = ["docs/runs/notes.md", "seen.md", "src/seen.md"]


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A working directory with four runs roots, and a `runs` directory that is none."""
    cwd = tmp_path / "cwd"
    for root in ("runs", "src/other [x]", "src/.subagent/runs", "src/plain"):
        (cwd / root).parent.mkdir(parents=True, exist_ok=True)
        make_root(cwd / root) if root != "src/plain" else (cwd / root).mkdir()
        (cwd / root / "20260101-000000-abcdef").mkdir()
        (cwd / root / "20260101-000000-abcdef/record.md").write_text("needle\n", encoding="utf-8")
    for name in FOUND:
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text("needle\n", encoding="utf-8")
    return cwd


def tools(cwd: Path) -> dict[str, Tool]:
    scope = SearchScope(cwd, cwd / "src/plain", is_marked)
    return {"needle": GrepTool(scope), "**/*.md": GlobTool(scope)}


@pytest.mark.process
@pytest.mark.parametrize("include_ignored", [False, True])
def test_runs_roots_are_not_searched(cwd: Path, include_ignored: bool) -> None:
    for pattern, tool in tools(cwd).items():
        found = text_of(tool, pattern=pattern, includeIgnored=include_ignored)
        assert sorted(found.split("\n")) == FOUND
        found = text_of(tool, pattern=pattern, path="src", includeIgnored=include_ignored)
        assert found == "src/seen.md"


@pytest.mark.parametrize(
    "path", ["runs", "runs/20260101-000000-abcdef", "src/plain", "src/.subagent", "src/.subagent/runs"]
)
def test_a_path_in_a_runs_root_is_refused(cwd: Path, path: str) -> None:
    for pattern, tool in tools(cwd).items():
        assert "holds the runs of the server" in fault_of(tool, pattern=pattern, path=path)


@pytest.mark.process
def test_a_run_that_works_below_a_runs_root_searches_there(cwd: Path) -> None:
    scope = SearchScope(cwd / "runs/20260101-000000-abcdef", cwd / "runs", is_marked)
    assert text_of(GrepTool(scope), pattern="needle") == "record.md"


@pytest.mark.process
def test_a_copy_of_a_runs_root_is_searched_as_an_ordinary_directory(cwd: Path) -> None:
    shutil.copytree(cwd / "runs", cwd / "docs/copy")
    shutil.rmtree(cwd / "runs")
    for pattern, tool in tools(cwd).items():
        assert "docs/copy/20260101-000000-abcdef/record.md" in text_of(tool, pattern=pattern)


@pytest.mark.process
def test_directories_that_cannot_be_read_are_counted(cwd: Path) -> None:
    """A path of over 4,096 bytes cannot be opened, also by root."""
    directory = os.open(cwd, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=directory)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    for pattern, tool in tools(cwd).items():
        *found, note = text_of(tool, pattern=pattern).split("\n")
        assert sorted(found) == FOUND
        assert note == "[1 files or directories could not be read]"
        assert "[1 files" in text_of(tool, pattern=pattern, path="d" * 250)
