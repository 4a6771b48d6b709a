"""A name that comes during a command is moved, whatever it is; what was there before stays."""

import asyncio
import os
import threading
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, Tool

from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.confined_path import open_real
from subagent_server.run.files import Directory, held_open, remove_tree
from subagent_server.sandbox import quarantine
from subagent_server.sandbox.file_watch import CommandWatch, NameWatch, OwnWrites, own_hooks
from subagent_server.sandbox.quarantine import Kept, Quarantine
from subagent_server.toolbox.mcp.mcp_tools import McpTool, NamedTool
from subagent_server.toolbox.mcp.server_connection import CallAnswer, ServerConnection, ServerContext
from subagent_server.toolbox.outputs import KeptOutputs
from tests.helpers.ordinary_user import user
from tests.helpers.repositories import git, make_repository
from tests.helpers.world import World


class Place:
    """A working directory, a quarantine and a state directory."""

    def __init__(self, home: Path, kept: Path | None = None) -> None:
        self.cwd = home.resolve() / "project"
        self.cwd.mkdir()
        self.quarantine = Quarantine(Directory(kept or home / "quarantine"))
        self.own = OwnWrites(home / "state")

    def watch(self, *lifted: str) -> NameWatch:
        """Return a watch of the directory."""
        return NameWatch(self.cwd, self.quarantine, self.own, lifted)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place on one file system."""
    return Place(tmp_path)


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Place]:
    """A place whose quarantine is on another file system."""
    shared = Path("/dev/shm")
    if shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    directory = Directory(shared / f"subagent-quarantine-{os.getpid()}")
    directory.make_new()
    place = Place(tmp_path, directory.path / "quarantine")
    yield place
    remove_tree(Directory(shared).entry(directory.path.name))


def write(path: Path, text: str = "x") -> None:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


CAME: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda cwd: write(cwd / ".mcp.json"), ".mcp.json"),
    "a directory": (lambda cwd: write(cwd / ".vscode/tasks.json"), ".vscode"),
    "hooks of Lefthook": (lambda cwd: write(cwd / "lefthook-local.toml"), "lefthook-local.toml"),
    "hooks of a client": (lambda cwd: write(cwd / ".github/hooks/a.json"), ".github/hooks"),
    "a file of several parts": (lambda cwd: write(cwd / ".cargo/config.toml"), ".cargo/config.toml"),
    "a link": (lambda cwd: (cwd / ".envrc").symlink_to("/etc/passwd"), ".envrc"),
    "a link to nothing": (lambda cwd: (cwd / ".envrc").symlink_to("nothing"), ".envrc"),
    "a link to a directory": (lambda cwd: (cwd / ".cargo").symlink_to("/etc"), ".cargo"),
    "a link to itself": (lambda cwd: (cwd / "mise").symlink_to("mise"), "mise"),
    "a FIFO": (lambda cwd: os.mkfifo(cwd / "mise.toml"), "mise.toml"),
    "a repository": (lambda cwd: git("init", "--quiet", cwd), ".git"),
}


@pytest.mark.parametrize(("come", "path"), CAME.values(), ids=CAME)
def test_a_name_that_came_is_moved_whole(place: Place, come: Callable[[Path], object], path: str) -> None:
    names = place.watch()
    before = names.look()
    come(place.cwd)
    taken = names.take(before, "the command")
    assert [kept.shown(place.cwd) for kept in taken.moved] == [path] and not taken.stuck
    assert not os.path.lexists(place.cwd / path) and place.quarantine.kept() == list(taken.moved)
    assert not names.take(before, "the next one")
    place.quarantine.give_back(taken.moved[0])
    assert os.path.lexists(place.cwd / path) and not place.quarantine.kept()


def test_a_bare_repository_is_taken_apart(place: Place) -> None:
    names = place.watch()
    before = names.look()
    write(place.cwd / "HEAD")
    assert not names.take(before, "a file that is called HEAD")
    before = names.look()
    git("init", "--quiet", "--bare", place.cwd)
    moved = {kept.shown(place.cwd) for kept in names.take(before, "git init --bare").moved}
    assert {"HEAD", "objects", "refs", "config"} <= moved


def test_what_was_there_before_stays(place: Place) -> None:
    names = place.watch()
    write(place.cwd / ".mcp.json", "the person's")
    before = names.look()
    write(place.cwd / ".mcp.json", "changed")
    assert not names.take(before, "the command") and (place.cwd / ".mcp.json").exists()


def test_the_directories_above_are_watched_up_to_the_top(place: Place) -> None:
    make_repository(place.cwd)
    inner = place.cwd / "a" / "b"
    inner.mkdir(parents=True)
    names = NameWatch(inner, place.quarantine, place.own)
    before = names.look()
    for directory in (inner, inner.parent, place.cwd, place.cwd.parent):
        write(directory / ".envrc")
    moved = {kept.path for kept in names.take(before, "the command").moved}
    assert moved == {str(path / ".envrc") for path in (inner, inner.parent, place.cwd)}


def test_hooks_and_files_that_the_configuration_of_git_names_are_watched_before_they_exist(
    place: Place,
) -> None:
    make_repository(place.cwd)
    git("-C", place.cwd, "config", "core.hooksPath", "tools/hooks")
    git("-C", place.cwd, "config", "include.path", "../local.cfg")
    git("-C", place.cwd, "config", "filter.own.clean", "sh .venv/bin/clean %f")
    git("-C", place.cwd, "config", "alias.own", "!rm -r build/out")
    names = NameWatch(place.cwd, place.quarantine, place.own, (), lambda: own_hooks(place.cwd))
    before = names.look()
    executed = ("tools/hooks/pre-commit", "local.cfg", ".venv/bin/clean")
    others = ("tools/other", "build/out")
    for path in (*executed, *others):
        write(place.cwd / path)
    moved = {kept.shown(place.cwd) for kept in names.take(before, "the command").moved}
    assert moved == {"tools/hooks", "local.cfg", ".venv/bin/clean"}
    assert all((place.cwd / path).exists() for path in others)


def test_what_the_author_lifts_stays_and_nothing_beside_it(place: Place) -> None:
    names = place.watch(".mcp.json", ".claude/agents")
    before = names.look()
    for path in (".mcp.json", ".claude/agents/a.md", ".claude/settings.json", ".envrc"):
        write(place.cwd / path)
    moved = {kept.shown(place.cwd) for kept in names.take(before, "the command").moved}
    assert moved == {".claude/settings.json", ".envrc"}


def test_what_we_wrote_stays_until_another_writes_it(place: Place) -> None:
    names = place.watch()
    before = names.look()
    path = place.cwd / ".claude" / "settings.json"
    with place.own.writing(path):
        write(path)
    write(place.cwd / ".mcp.json")
    assert [kept.shown(place.cwd) for kept in names.take(before, "it").moved] == [".mcp.json"]
    assert path.exists()
    write(place.cwd / ".claude" / "another")
    assert [kept.shown(place.cwd) for kept in names.take(before, "it").moved] == [".claude"]


def test_what_subagent_is_just_writing_is_judged_when_it_is_written(place: Place) -> None:
    names = place.watch()
    before = names.look()
    path = place.cwd / ".claude" / "settings.local.json"
    with ThreadPoolExecutor(1) as thread:
        with place.own.writing(path):
            path.parent.mkdir()
            taking = thread.submit(names.take, before, "it")
            assert not wait([taking], 0.5).done, "it waits for the writer"
            write(path)
        assert taking.result().moved == [] and path.exists()


def test_nothing_replaces_what_has_come_to_the_place(place: Place) -> None:
    names = place.watch()
    before = names.look()
    write(place.cwd / ".mcp.json", "of the run")
    (kept,) = names.take(before, "the command").moved
    write(place.cwd / ".mcp.json", "of the person")
    with pytest.raises(FileExistsError):
        place.quarantine.give_back(kept)
    assert (place.cwd / ".mcp.json").read_text(encoding="utf-8") == "of the person"
    assert place.quarantine.kept() == [kept]


def test_what_is_given_back_is_no_file_that_a_run_still_has(place: Place) -> None:
    watch = place.watch()
    before = watch.look()
    write(place.cwd / ".vscode/.copy", "in the way")
    names = [".envrc", *(f".vscode/{number}.json" for number in range(9))]
    for number, name in enumerate(names):
        write(place.cwd / name, "looked at")
        (place.cwd / f"other{number}").hardlink_to(place.cwd / name)
    names += [".mcp.json"]
    write(place.cwd / ".mcp.json", "looked at")
    with (place.cwd / ".mcp.json").open("r+", encoding="utf-8") as held:
        for kept in watch.take(before, "the command").moved:
            place.quarantine.give_back(kept)
        held.write("written later")
    for number in range(len(names) - 1):
        write(place.cwd / f"other{number}", "written later")
    assert {(place.cwd / name).read_text("utf-8") for name in names} == {"looked at"}
    watch.close()


def test_a_path_on_record_is_shown_whatever_it_holds() -> None:
    assert Kept("001", "/work/\ud800\udcff", at="", during="").shown(Path("/work")) == "\ufffd\ufffd"


def test_nothing_is_given_back_through_a_link(place: Place) -> None:
    write(place.cwd / ".config" / "other")
    names = place.watch()
    before = names.look()
    write(place.cwd / ".config" / "mise.toml")
    (kept,) = names.take(before, "the command").moved
    (place.cwd / ".config").rename(place.cwd / "away")
    (place.cwd / ".config").symlink_to(place.cwd.parent)
    with pytest.raises(OSError, match=r"link|directory"):
        place.quarantine.give_back(kept)
    assert not (place.cwd.parent / "mise.toml").exists()


def test_two_runs_in_one_directory_move_it_once(place: Place) -> None:
    other = Quarantine(Directory(place.cwd.parent / "other"))
    first, second = place.watch(), NameWatch(place.cwd, other, place.own)
    before = first.look()
    assert second.look() == before
    write(place.cwd / ".mcp.json")
    barrier, taken = threading.Barrier(2), []

    def take(names: NameWatch) -> None:
        barrier.wait()
        taken.append(names.take(before, "the command"))

    threads = [threading.Thread(target=take, args=[names]) for names in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(each.moved) for each in taken) == 1 and not any(each.stuck for each in taken)


def test_a_name_that_comes_back_at_once_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    names, take = place.watch(), Quarantine.take
    before = names.look()

    def come_back(*given: Any) -> Kept | None:
        kept = take(*given)
        (place.cwd / ".envrc").symlink_to("/etc/passwd")
        return kept

    monkeypatch.setattr(Quarantine, "take", come_back)
    (place.cwd / ".envrc").symlink_to("/etc/passwd")
    taken = names.take(before, "the command")
    assert "comes back at once" in taken.stuck[0] and len(taken.moved) > 1
    assert Path("/etc/passwd").is_file()


def test_another_file_system_gets_a_copy(apart: Place) -> None:
    names = apart.watch()
    before = names.look()
    write(apart.cwd / ".vscode" / "a" / "tasks.json", "tasks")
    (apart.cwd / ".vscode" / "link").symlink_to("/etc/passwd")
    os.mkfifo(apart.cwd / ".vscode" / "fifo")
    (kept,) = names.take(before, "the command").moved
    assert not (apart.cwd / ".vscode").exists()
    apart.quarantine.give_back(kept)
    assert (apart.cwd / ".vscode" / "a" / "tasks.json").read_text(encoding="utf-8") == "tasks"
    assert (apart.cwd / ".vscode" / "link").readlink() == Path("/etc/passwd")


def test_what_cannot_be_copied_stays_and_is_said(apart: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MOST_BYTES", 1000)
    monkeypatch.setattr(quarantine, "MOST_NAMES", 50)
    names = apart.watch()
    before = names.look()
    write(apart.cwd / ".mcp.json", "x" * 2000)
    os.mkfifo(apart.cwd / ".envrc")
    deep = apart.cwd / ".vscode"
    deep.mkdir()
    for _ in range(60):
        deep = deep / "d"
        deep.mkdir()
    for number in range(60):
        write(apart.cwd / ".idea" / str(number))
    taken = names.take(before, "the command")
    assert len(taken.stuck) == 3
    assert all((apart.cwd / name).exists() for name in (".mcp.json", ".envrc", ".vscode"))
    assert not (apart.cwd / ".idea").exists(), "the rest of it is moved as what comes back"
    assert {kept.shown(apart.cwd) for kept in taken.moved} == {".vscode", ".idea"}


class Writer(ServerConnection):
    """A server that writes what its caller names."""

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Write a file."""
        write(Path(arguments["path"]))
        return CallAnswer(CallToolResult(content=[]), [])


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_a_name_that_comes_by_the_call_of_a_server_here_is_moved(place: Place, kind: str) -> None:
    mark = Directory(place.cwd.parent).entry("before")
    watch = CommandWatch(place.watch(), mark, lambda taken: f"moved: {len(taken.moved)}", str)
    around = ServerContext(lambda *_: pytest.fail("not started"), lambda *_, **__: None, watch=watch)
    server = Writer("files", ServerDefinition.model_validate({"type": kind, "command": "x"}), around)
    offered = NamedTool("files", Tool(name="write", input_schema={"type": "object"}), "write")
    target = place.cwd / ".mcp.json"
    result = asyncio.run(McpTool(offered, server, KeptOutputs()).call({"path": str(target)}))
    assert target.exists() == (kind == "http")
    assert result.text == ("" if kind == "http" else "moved: 1")


def test_a_full_quarantine_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MOST_KEPT", 1)
    names = place.watch()
    before = names.look()
    write(place.cwd / ".envrc")
    write(place.cwd / ".mcp.json")
    taken = names.take(before, "the command")
    assert len(taken.moved) == len(taken.stuck) == 1


def move_a_closed_directory(world: World) -> None:
    """Let a directory come that its owner can neither list nor write."""
    place = Place(world.work)
    names = place.watch()
    before = names.look()
    write(place.cwd / ".vscode" / "tasks.json")
    (place.cwd / ".vscode").chmod(0)
    assert len(names.take(before, "the command").moved) == 1


def test_a_closed_directory_is_moved_too() -> None:
    with user() as somebody:
        somebody.play(move_a_closed_directory)


def test_a_process_in_a_directory_that_is_moved_does_not_come_along(place: Place) -> None:
    names = place.watch()
    before = names.look()
    write(place.cwd / ".claude" / "sub" / "settings.json")
    with (
        held_open(open_real(place.cwd / ".claude")) as outer,
        held_open(open_real(place.cwd / ".claude/sub")) as inner,
    ):
        assert len(names.take(before, "the command").moved) == 1
        for each in (outer, inner):
            assert not path_of(each).is_relative_to(place.cwd.parent / "quarantine")


def path_of(descriptor: int) -> Path:
    """Return where an open directory lies."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_a_look_takes_no_longer_among_many_files(place: Place) -> None:
    make_repository(place.cwd)
    names = place.watch()

    def shortest() -> float:
        return min(timeit.repeat(names.look, number=1, repeat=100))

    alone = shortest()
    for number in range(3_000):
        (place.cwd / f"file{number}").touch()
    assert shortest() < 5 * alone
