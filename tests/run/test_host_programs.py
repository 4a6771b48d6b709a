"""Programs of the host are found where no run can write."""

from pathlib import Path

import pytest

from subagent_server.run.host_programs import NoHostProgram, lies_in, system_program, user_program
from tests.helpers.files import write_program


def program(path: Path) -> Path:
    return write_program(path, "#!/bin/sh\n")


def test_a_program_in_a_writable_directory_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "project/.venv/bin/tool")
    outside = program(tmp_path / "bin/tool")
    path = f"{tmp_path}/project/.venv/bin:{tmp_path}/bin"
    assert user_program("tool", path, [tmp_path / "project"]) == outside


def test_a_program_that_only_a_writable_directory_has_is_refused_with_the_reason(tmp_path: Path) -> None:
    program(tmp_path / "project/bin/tool")
    with pytest.raises(NoHostProgram, match=f"a run can write it.*{tmp_path}/project"):
        user_program("tool", f"{tmp_path}/project/bin", [tmp_path / "project"])


def test_an_absolute_path_in_a_writable_directory_is_refused(tmp_path: Path) -> None:
    place = program(tmp_path / "project/bin/tool")
    with pytest.raises(NoHostProgram, match="a run can write it"):
        user_program(str(place), None, [tmp_path / "project"])


def test_a_link_that_leads_through_a_writable_directory_is_refused(tmp_path: Path) -> None:
    outside = program(tmp_path / "real/tool")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/way").symlink_to(outside.parent)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").symlink_to(tmp_path / "project/way/tool")
    assert lies_in(tmp_path / "project/way/tool", [tmp_path / "project"]) == tmp_path / "project"
    with pytest.raises(NoHostProgram):
        user_program(str(tmp_path / "bin/tool"), None, [tmp_path / "project"])


def test_relative_directories_of_the_path_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "tool-of-here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoHostProgram, match="not in PATH"):
        user_program("tool-of-here", ".::", [])


def test_a_program_of_the_system_comes_before_the_path(tmp_path: Path) -> None:
    program(tmp_path / "sh")
    assert system_program("sh", str(tmp_path), []) != tmp_path / "sh"


def test_a_found_program_stays_the_same_when_another_appears_before_it(tmp_path: Path) -> None:
    second = program(tmp_path / "second/tool-x")
    path = f"{tmp_path}/first:{tmp_path}/second"
    assert user_program("tool-x", path, []) == second
    program(tmp_path / "first/tool-x")
    assert user_program("tool-x", path, []) == second


def test_a_found_program_that_was_replaced_is_looked_up_again(tmp_path: Path) -> None:
    second = program(tmp_path / "second/tool-y")
    path = f"{tmp_path}/first:{tmp_path}/second"
    user_program("tool-y", path, [])
    second.unlink()
    first = program(tmp_path / "first/tool-y")
    assert user_program("tool-y", path, []) == first
