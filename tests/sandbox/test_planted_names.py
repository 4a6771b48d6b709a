"""What an earlier run left in a directory does not hold up the box of the next, and shows it nothing."""

import os
import socket
from pathlib import Path

import pytest

from subagent_server.sandbox.box import MAX_HELD, Box, Rules, build_box, hold
from subagent_server.sandbox.git_files import config_without_credentials
from subagent_server.sandbox.readable import BoxRefused, showing, tool_chains
from subagent_server.sandbox.verify import try_box
from tests.helpers import bubblewrap


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """A working directory, empty, by its real path."""
    directory = tmp_path.resolve() / "project"
    directory.mkdir()
    return directory


def box_of(cwd: Path, path: str = os.defpath) -> Box:
    """Return the box of a run in a directory."""
    environment = {"HOME": "/root/nobody", "PATH": path, **bubblewrap.settings()}
    return build_box(Rules(cwd=cwd, environment=environment, over=hold(cwd, []).mounts))


@pytest.mark.parametrize("odd", ["\r", "\x0b\x0c", " \t\n\\", "\udcff", "\u2028"], ids=ascii)
def test_a_box_is_made_whatever_bytes_a_read_only_name_holds(cwd: Path, odd: str) -> None:
    (cwd / f"a{odd}b.code-workspace").touch()
    try_box(box_of(cwd))


def test_a_box_is_made_over_fifos_and_sockets(cwd: Path) -> None:
    os.mkfifo(cwd / ".envrc")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(cwd / ".mcp.json"))
        try_box(box_of(cwd))


@pytest.mark.parametrize("gone", [".mcp.json", ".github/hooks", ".github"])
@pytest.mark.parametrize("link", [True, False])
def test_a_name_that_goes_or_becomes_a_link_after_the_look_says_nothing_of_boxes(
    cwd: Path, gone: str, link: bool
) -> None:
    (cwd / ".github/hooks").mkdir(parents=True)
    (cwd / ".mcp.json").touch()
    over = hold(cwd, []).mounts
    (cwd / gone).rename(cwd / "elsewhere")
    if link:
        (cwd / gone).symlink_to("elsewhere")
    environment = {"HOME": "/root/nobody", "PATH": os.defpath, **bubblewrap.settings()}
    with pytest.raises(BoxRefused) as refused:
        build_box(Rules(cwd=cwd, environment=environment, over=over))
    assert refused.value.passes


def test_thousands_of_names_are_held_as_far_as_a_box_can_and_the_rest_is_said(cwd: Path) -> None:
    for number in range(MAX_HELD + 5):
        (cwd / f"{number}.code-workspace").touch()
    held = hold(cwd, [])
    assert len(held.mounts) == MAX_HELD and "5 names like" in held.open[0]


@pytest.mark.parametrize("work", [".", "part"], ids=["all of it", "a part of it"])
@pytest.mark.parametrize("target", ["{}", "../../../private"])
def test_a_link_beside_programs_of_the_project_shows_nothing_and_stops_no_box(
    cwd: Path, target: str, work: str
) -> None:
    private = cwd.parent / "private"
    private.mkdir()
    for name in ("tools/bin", "part", ".git"):
        (cwd / name).mkdir(parents=True)
    (cwd / "tools/lib").symlink_to(target.format(private))
    box = box_of(cwd / work, f"{cwd}/tools/bin:{os.defpath}")
    assert str(cwd / "tools/bin") in box.arguments and str(cwd / "tools/lib") not in box.arguments
    try_box(box)


def test_a_configuration_is_read_through_no_link_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("url = https://u:password@host\n", encoding="utf-8")
    assert config_without_credentials(tmp_path / "key") is not None
    (tmp_path / "config").symlink_to("key")
    assert config_without_credentials(tmp_path / "config") is None
    os.mkfifo(tmp_path / "fifo")
    assert config_without_credentials(tmp_path / "fifo") is None


@pytest.mark.parametrize(("target", "is_shown"), [(".ssh/id", False), (".pyenv/bin/python", True)])
def test_an_interpreter_of_the_project_that_is_a_link_shows_directories_of_programs_alone(
    cwd: Path, target: str, is_shown: bool
) -> None:
    real, python = cwd.parent / target, cwd / "python"
    real.parent.mkdir(parents=True)
    python.symlink_to(real)
    assert (str(real.parent) in showing([python], {}, [cwd])["PATH"]) == is_shown


def test_a_link_to_a_name_that_is_too_long_leads_a_box_to_nothing(cwd: Path) -> None:
    link = cwd.parent / "bin"
    link.symlink_to("a" * 300)
    assert str(link) in showing([link / "python"], {}, [])["PATH"].split(os.pathsep)
    assert link not in tool_chains(cwd.parent, cwd, [], {"PATH": str(link)})


def test_a_directory_of_path_with_dots_is_shown_and_not_written(cwd: Path) -> None:
    tools = cwd.parent / "tools"
    tools.mkdir()
    box = box_of(cwd, f"{cwd}/../tools:{os.defpath}")
    assert str(tools) in box.arguments and not box.writable & {str(tools), str(cwd.parent)}
    try_box(box)
