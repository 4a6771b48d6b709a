"""`ls`: one directory, without what no search enters."""

from pathlib import Path

import pytest

from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import ListTool
from tests.toolbox.calls import fault_of, text_of

pytestmark = pytest.mark.process


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with a runs root, links and directories without files."""
    for name in (
        *("src/deep/a.py", "src/b.py", "build/out.o", "cache/kept.txt", "runs/r1/run.log"),
        ".git/config",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x", encoding="utf-8")
    (tmp_path / "bare" / "empty").mkdir(parents=True)
    (tmp_path / "bare" / "link").symlink_to("/etc")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".gitignore").write_text("build/\n", encoding="utf-8")
    (tmp_path / "z.txt").write_text("x", encoding="utf-8")
    (tmp_path / "link").symlink_to("/etc")
    return tmp_path


def tool(project: Path) -> ListTool:
    return ListTool(SearchScope(project, project / "runs"))


def test_one_level_is_listed_without_what_searches_leave_out(project: Path) -> None:
    assert text_of(tool(project)).split("\n") == [
        *(".gitignore", "bare/", "build/", "cache/", "empty/", "src/", "z.txt")
    ]
    assert text_of(tool(project), path="src").split("\n") == ["src/b.py", "src/deep/"]


def test_patterns_leave_names_out(project: Path) -> None:
    assert text_of(tool(project), ignore=["*.txt", "c*"]).split("\n") == [
        ".gitignore",
        "bare/",
        "build/",
        "empty/",
        "src/",
    ]


def test_a_directory_without_entries_is_said_to_be_so(project: Path) -> None:
    assert text_of(tool(project), path="empty") == "There is nothing to list in empty."


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("..", "outside"),
        ("link", "link"),
        ("z.txt", "is a file"),
        ("runs", "holds the runs"),
    ],
)
def test_what_is_no_directory_of_the_project_is_refused(project: Path, path: str, words: str) -> None:
    assert words in fault_of(tool(project), path=path)


def test_very_many_entries_are_cut_and_counted(tmp_path: Path) -> None:
    for number in range(1_205):
        (tmp_path / f"f{number:04}").touch()
    lines = text_of(tool(tmp_path)).split("\n")
    assert len(lines) == 1_001 and lines[0] == "f0000" and "205 more entries" in lines[-1]
