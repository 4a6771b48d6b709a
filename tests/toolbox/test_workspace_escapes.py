"""Nothing outside of the working directory is read or written, and read-only roots are not written."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.toolbox.editor import EditorTool
from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import GlobTool, GrepTool
from subagent_server.toolbox.tool import Tool
from tests.helpers.files import open_descriptors
from tests.toolbox.calls import call, called, fault_of, text_of


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A working directory with every way out, beside a directory with a secret."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("SECRET\n", encoding="utf-8")
    cwd = tmp_path / "cwd"
    (cwd / "sub").mkdir(parents=True)
    (cwd / "sub/inner.txt").write_text("inner\n", encoding="utf-8")
    (cwd / "file_out").symlink_to("../outside/secret.txt")
    (cwd / "file_out_absolute").symlink_to(outside / "secret.txt")
    (cwd / "dir_out").symlink_to("../outside")
    (cwd / "up").symlink_to("..")
    (cwd / "sub/chain").symlink_to("../dir_out")
    (cwd / "new_out").symlink_to("../outside/new.txt")
    (cwd / "loop").symlink_to("loop")
    (cwd / "root").symlink_to("/")
    (cwd / "process").symlink_to("/proc/self/cwd")
    return cwd


WAYS_OUT = [
    *("..", "../outside/secret.txt", "sub/../../outside/secret.txt", "up/outside/secret.txt", "../new.txt"),
    *("/", "/etc/passwd", "//etc/passwd", "/proc/self/environ", "root/etc/passwd", "process/x"),
    *("file_out", "file_out_absolute", "new_out", "loop", "loop/x", "sub/chain/secret.txt"),
    *("dir_out", "dir_out/", "dir_out/secret.txt", "dir_out/new.txt", "dir_out/made/new.txt"),
    *("sub/inner.txt/../../../outside/secret.txt", "~/../outside"),
]
COMMANDS: dict[str, dict[str, object]] = {
    "view": {},
    "create": {"file_text": "changed"},
    "str_replace": {"old_str": "SECRET", "new_str": "changed"},
    "insert": {"insert_line": 0, "insert_text": "changed"},
}


@pytest.mark.parametrize("path", WAYS_OUT)
def test_the_editor_refuses_every_way_out(cwd: Path, path: str) -> None:
    editor = EditorTool(cwd=cwd)
    for command, rest in COMMANDS.items():
        sentence = fault_of(editor, command=command, path=path, **rest)
        assert "SECRET" not in sentence
        assert sentence.endswith(".")
    assert_untouched(cwd)


def assert_untouched(cwd: Path) -> None:
    outside = cwd.parent / "outside"
    assert [p.name for p in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text(encoding="utf-8") == "SECRET\n"
    assert sorted(p.name for p in cwd.parent.iterdir()) == ["cwd", "outside"]


@pytest.mark.parametrize("path", [way for way in WAYS_OUT if way != "~/../outside"])
def test_searches_refuse_every_way_out(cwd: Path, path: str) -> None:
    assert "SECRET" not in fault_of(GrepTool(SearchScope(cwd)), pattern="", path=path)
    assert "secret" not in fault_of(GrepTool(SearchScope(cwd)), pattern="SECRET", path=path).replace(path, "")
    assert "secret" not in fault_of(GlobTool(SearchScope(cwd)), pattern="**", path=path).replace(path, "")


@pytest.mark.process
def test_searches_do_not_follow_links_out(cwd: Path) -> None:
    assert text_of(GrepTool(SearchScope(cwd)), pattern="SECRET|inner|root") == "sub/inner.txt"
    assert text_of(GlobTool(SearchScope(cwd)), pattern="**/*") == "sub/inner.txt"
    assert text_of(GlobTool(SearchScope(cwd)), pattern="dir_out/*").startswith("No file matches")


@pytest.mark.parametrize(
    "pattern", ["../*", "../outside/*", "sub/../../outside/*", "/etc/*", "/etc/passwd", "{..,x}/*"]
)
def test_glob_patterns_do_not_lead_out(cwd: Path, pattern: str) -> None:
    assert call(GlobTool(SearchScope(cwd)), pattern=pattern).is_error


def test_links_inside_are_followed(cwd: Path) -> None:
    (cwd / "inside").symlink_to("sub")
    (cwd / "absolute").symlink_to(cwd / "sub/inner.txt")
    (cwd / "sub/back").symlink_to("../sub/inner.txt")
    editor = EditorTool(cwd=cwd)
    for path in ("inside/inner.txt", "absolute", "sub/back", "inside/back", "sub/../sub/inner.txt"):
        assert text_of(editor, command="view", path=path) == "     1\tinner"
    text_of(editor, command="create", path="inside/new.txt", file_text="x")
    assert (cwd / "sub/new.txt").exists()


def test_any_name_of_the_working_directory_will_do(cwd: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(cwd)
    editor = EditorTool(cwd=cwd)
    for path in (
        cwd / "sub/inner.txt",
        tmp_path / "alias/sub/inner.txt",
        tmp_path / "cwd/../cwd/sub/inner.txt",
    ):
        assert text_of(editor, command="view", path=str(path)) == "     1\tinner"


def test_a_working_directory_that_is_a_link_now_is_not_entered(cwd: Path) -> None:
    (cwd / "sub/inner.txt").rename(cwd / "sub/secret.txt")
    tools: list[Tool] = [EditorTool(cwd=cwd / "sub"), GrepTool(SearchScope(cwd / "sub"))]
    assert text_of(tools[0], command="view", path="secret.txt") == "     1\tinner"
    (cwd / "sub").rename(cwd / "aside")
    (cwd / "sub").symlink_to("../outside")
    for path in ("secret.txt", str(cwd / "sub/secret.txt")):
        assert "SECRET" not in fault_of(tools[0], command="view", path=path)
        assert "SECRET" not in fault_of(tools[1], pattern="S", path=path)
    assert "changed" in fault_of(tools[0], command="create", path="new.txt", file_text="x")
    assert_untouched(cwd)


def swapping(cwd: Path, use: Callable[[], None]) -> None:
    """Call `use` while `cwd/swapped` is now a directory of ours, now a link to the one outside."""
    (cwd / "swapped").mkdir()
    (cwd / "swapped/secret.txt").write_text("ours\n", encoding="utf-8")
    (cwd / "link").symlink_to("../outside")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            (cwd / "swapped").rename(cwd / "aside")
            (cwd / "link").rename(cwd / "swapped")
            (cwd / "swapped").rename(cwd / "link")
            (cwd / "aside").rename(cwd / "swapped")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        use()
    finally:
        done.set()
        swapper.join()


def test_a_directory_swapped_for_a_link_leads_nowhere(cwd: Path) -> None:
    editor = EditorTool(cwd=cwd)
    inserting = {"command": "insert", "path": "swapped/secret.txt", "insert_line": 0}
    outcomes = set()

    async def use() -> None:
        for n in range(400):
            seen = await called(editor, {"command": "view", "path": "swapped/secret.txt"})
            changed = await called(editor, {**inserting, "insert_text": str(n)})
            outcomes.update({seen.is_error, changed.is_error})
            assert "SECRET" not in seen.text

    swapping(cwd, lambda: asyncio.run(use()))
    assert_untouched(cwd)
    assert False in outcomes


@pytest.mark.parametrize(
    "path", ["runs/x", "runs/new/x", "runs", "link/x", "agents/a.md", "sub/../runs/x", "late/x/y"]
)
def test_read_only_roots_are_viewed_and_not_written(cwd: Path, path: str) -> None:
    for name in ("runs", "agents"):
        (cwd / name).mkdir()
    (cwd / "agents/a.md").write_text("SECRET agent\n", encoding="utf-8")
    (cwd / "runs/x").write_text("SECRET run\n", encoding="utf-8")
    (cwd / "link").symlink_to("runs")
    editor = EditorTool(cwd=cwd, read_only=[cwd / "runs", cwd / "agents", cwd / "late"])
    for command in ("create", "str_replace", "insert"):
        sentence = fault_of(editor, command=command, path=path, **COMMANDS[command])
        assert "read-only" in sentence or "is not" in sentence or "There is no" in sentence
    assert (cwd / "agents/a.md").read_text(encoding="utf-8") == "SECRET agent\n"
    assert sorted(p.name for p in (cwd / "runs").iterdir()) == ["x"]
    assert not (cwd / "late").exists()
    assert "SECRET run" in text_of(editor, command="view", path="runs/x")
    text_of(editor, command="create", path="runs2/x", file_text="x")


def test_a_read_only_root_is_known_by_any_of_its_names(cwd: Path, tmp_path: Path) -> None:
    (cwd / "runs").mkdir()
    (tmp_path / "elsewhere").symlink_to(cwd / "runs")
    editor = EditorTool(cwd=cwd, read_only=[tmp_path / "elsewhere"])
    assert "read-only" in fault_of(editor, command="create", path="runs/x", file_text="x")


def test_a_read_only_root_above_the_working_directory_covers_it(cwd: Path, tmp_path: Path) -> None:
    editor = EditorTool(cwd=cwd, read_only=[tmp_path])
    assert "read-only" in fault_of(editor, command="create", path="new/x", file_text="x")
    assert not (cwd / "new").exists()


@pytest.mark.process
def test_no_descriptor_is_left_open(cwd: Path) -> None:
    tools: list[Tool] = [EditorTool(cwd=cwd), GrepTool(SearchScope(cwd)), GlobTool(SearchScope(cwd))]

    def use() -> None:
        for path in WAYS_OUT:
            call(tools[0], command="view", path=path)
            call(tools[0], command="create", path=path, file_text="x")
        for tool in tools[1:]:
            call(tool, pattern="x")
            call(tool, pattern="x", path="file_out")

    use()
    before = open_descriptors()
    use()
    assert open_descriptors() == before
