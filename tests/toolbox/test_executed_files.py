"""What other programs execute is viewed and not written, wherever it lies and however it is named."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from subagent_server.toolbox.editor import EditorTool
from tests.toolbox.calls import fault_of, text_of

pytestmark = pytest.mark.process

EXECUTED = [
    *(".mcp.json", ".Mcp.JSON", ".envrc", ".bashrc", ".config/fish/config.fish", ".pre-commit-config.yaml"),
    *("sub/.claude/settings.json", ".vscode/tasks.json", "whole.code-workspace", ".gitmodules"),
    *(".git", ".git/hooks/pre-commit", ".git/config", ".git/commondir", ".GIT/config", ".git./config"),
    *(".g\u200cit/config", "git~1/config", "sub/../.git/config", ".git/modules/lib/hooks/post-checkout"),
    *("sub/deep/.git/hooks/pre-commit", "to_git/hooks/pre-commit", "to_hook"),
    *("to_up/cwd/.git/hooks/pre-commit", "HEAD", "sub/HEAD"),
    *("bare/hooks/post-update", "bare/config", "common/config", ".clinerules/hooks/TaskStart"),
]
WRITABLE = [
    *(".clinerules/style.md", "Makefile", "package.json", "sub/conftest.py", "src/head/main.py", "HEAD.md"),
    *("git/config", ".gitignore", ".gitattributes", ".github/workflows/check.yml"),
    *(".config/other/config.toml", ".github"),
]


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A working directory with a repository, links into it, and two repositories by other names."""
    cwd = tmp_path / "cwd"
    (cwd / "sub").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", cwd], check=True)
    (cwd / "to_git").symlink_to(".git")
    (cwd / "to_hook").symlink_to(".git/hooks/pre-commit")
    (cwd / "to_up").symlink_to(cwd)
    for name in ("bare/objects", "bare/refs", "common"):
        (cwd / name).mkdir(parents=True)
    for name in ("bare/HEAD", "common/HEAD", "common/commondir"):
        (cwd / name).write_text("ref: refs/heads/main\n", encoding="utf-8")
    return cwd


@pytest.mark.parametrize("path", EXECUTED)
def test_files_that_other_programs_execute_are_not_written(cwd: Path, path: str) -> None:
    editor = EditorTool(cwd=cwd)
    before = tree(cwd)
    if path.startswith("to_up"):
        path = str(cwd / "to_up" / path.removeprefix("to_up/cwd/"))
    sentence = fault_of(editor, command="create", path=path, file_text="x")
    assert "is read-only here, because such files are executed by " in sentence
    assert "say in your answer" in sentence and sentence.endswith(".")
    for command in ({"command": "insert", "insert_line": 0, "insert_text": "x"}, REPLACE):
        assert fault_of(editor, path=path, **command)
    assert tree(cwd) == before


REPLACE = {"command": "str_replace", "old_str": "e", "new_str": "x"}


def tree(directory: Path) -> dict[str, bytes]:
    """Return every name below a directory, with the contents of files."""
    found = sorted(directory.rglob("*"))
    return {str(p): p.read_bytes() if p.is_file() and not p.is_symlink() else b"" for p in found}


def test_files_that_a_person_runs_knowingly_are_written(cwd: Path) -> None:
    editor = EditorTool(cwd=cwd)
    for path in WRITABLE[:-1]:
        text_of(editor, command="create", path=path, file_text="x")
    assert "is a directory" in fault_of(editor, command="create", path=WRITABLE[-1], file_text="x")


def test_a_lifted_entry_is_written_and_nothing_beside_it(cwd: Path) -> None:
    editor = EditorTool(cwd=cwd, lifted=[".claude/agents", ".envrc", "sub", "bare"])
    for path in (".claude/agents/new.md", ".envrc", "bare/config", "sub/plain.txt"):
        text_of(editor, command="create", path=path, file_text="x")
    beside = (".claude/settings.json", ".claude/agents.md", "sub/.claude/agents/new.md", "common/config")
    for path in (
        *beside,
        *(".claude/agents/../settings.json", ".claude/agents/.git/config", "sub/.envrc", ".envrc2/.envrc"),
    ):
        assert "read-only" in fault_of(editor, command="create", path=path, file_text="x")


def test_a_changed_file_is_not_setuid_any_more(cwd: Path) -> None:
    (cwd / "program").write_text("old\n", encoding="utf-8")
    (cwd / "program").chmod(0o6755)
    text_of(EditorTool(cwd=cwd), command="str_replace", path="program", old_str="old", new_str="new")
    assert stat.S_IMODE((cwd / "program").stat().st_mode) == 0o755


def test_another_name_of_a_changed_file_keeps_the_old_content(cwd: Path) -> None:
    outside = cwd.parent / "outside.txt"
    outside.write_text("old\n", encoding="utf-8")
    os.link(outside, cwd / "linked.txt")
    text_of(EditorTool(cwd=cwd), command="str_replace", path="linked.txt", old_str="old", new_str="new")
    assert (cwd / "linked.txt").read_text(encoding="utf-8") == "new\n"
    assert outside.read_text(encoding="utf-8") == "old\n"
