"""Flags override the environment, and the environment overrides the defaults."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.run.errors import BadArgument, HostError, UnsafeRoot
from subagent_server.run.paths import RootPaths
from subagent_server.run.store import RunStore
from subagent_server.settings import Settings, read_settings
from tests.helpers.processes import run_python

NUMBERS: dict[str, tuple[str, Callable[[Settings], int], int]] = {
    "runs at once": ("SUBAGENT_MAX_RUNS", lambda s: s.max_runs, 64),
    "bytes of tools": ("SUBAGENT_TOOLS_BUDGET", lambda s: s.tools_budget, 8_000),
    "depth": ("SUBAGENT_MAX_DEPTH", lambda s: s.max_depth, 3),
    "lease": ("SUBAGENT_LEASE", lambda s: s.lease, 60),
    "descendants": ("SUBAGENT_MAX_DESCENDANTS", lambda s: s.max_descendants, 50),
}


def settings(cwd: Path, environment: dict[str, str] | None = None, runs: Path | None = None) -> Settings:
    return read_settings(cwd=cwd, environment=environment or {}, runs=runs)


def ours(directory: Path) -> Path:
    """Make a `runs/` folder as the store makes one."""
    RunStore(directory / "runs").make_root()
    return directory / "runs"


def test_runs_go_to_the_flag_then_the_environment_then_the_nearest_own_root(tmp_path: Path) -> None:
    nearest = ours(tmp_path)
    named = {"SUBAGENT_RUNS": "/srv/from-environment"}
    assert settings(tmp_path, named, runs=Path("/srv/from-flag")).runs_root == Path("/srv/from-flag")
    assert settings(tmp_path, named).runs_root == Path("/srv/from-environment")
    assert settings(tmp_path).runs_root == nearest
    assert settings(tmp_path, {"SUBAGENT_RUNS": ""}).runs_root == nearest


def test_a_working_directory_that_is_gone_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(HostError, match="The working directory is gone: go to one that exists"):
        read_settings(environment={})


def test_the_nearest_own_root_is_searched_upwards(tmp_path: Path) -> None:
    upper, deep = tmp_path / "a", tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    far = ours(upper)
    assert settings(deep).runs_root == far
    near = ours(upper / "b")
    assert settings(deep).runs_root == near
    assert settings(upper).runs_root == far


def test_a_foreign_runs_folder_is_passed_over_and_the_hidden_one_used(tmp_path: Path) -> None:
    foreign = tmp_path / "a" / "runs"
    (foreign / "experiment-1").mkdir(parents=True)
    found = settings(foreign.parent)
    assert (found.runs_root, found.passed_over) == (foreign.parent / ".subagent" / "runs", foreign)
    RunStore(found.runs_root).make_root()
    (foreign.parent / "deep").mkdir()
    for place in (foreign.parent, foreign.parent / "deep"):  # found again, and nothing is said any more
        assert (settings(place).runs_root, settings(place).passed_over) == (found.runs_root, None)


def test_a_folder_that_looks_like_ours_without_its_mark_is_named(tmp_path: Path) -> None:
    planted = tmp_path / "a" / "runs"
    (planted / ".changes").mkdir(parents=True)
    mine = ours(tmp_path)
    assert (settings(planted.parent).runs_root, settings(planted.parent).passed_over) == (mine, planted)


@pytest.mark.parametrize("content", [[], ["README.md"], [".gitignore", "README.md"]], ids=str)
def test_a_folder_that_holds_no_more_than_a_readme_becomes_a_root(tmp_path: Path, content: list[str]) -> None:
    (tmp_path / "runs").mkdir()
    for name in content:
        (tmp_path / "runs" / name).write_text("kept", encoding="utf-8")
    assert settings(tmp_path).runs_root == tmp_path / "runs"
    RunStore(tmp_path / "runs").make_root()
    assert RootPaths(tmp_path / "runs").is_ours
    assert all((tmp_path / "runs" / name).read_text(encoding="utf-8") == "kept" for name in content)


def test_a_link_is_no_folder_that_becomes_a_root(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    hidden = settings(tmp_path).runs_root
    assert hidden == tmp_path / ".subagent" / "runs"
    hidden.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeRoot, match=r"lies behind the link .*: name another with --runs"):
        RunStore(hidden).make_root()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_any_runs_folder_one_is_used_in_the_working_directory_and_not_yet_made(
    tmp_path: Path,
) -> None:
    assert settings(tmp_path).runs_root == tmp_path / "runs"
    assert list(tmp_path.iterdir()) == []


def test_relative_folders_are_relative_to_the_working_directory(tmp_path: Path) -> None:
    found = read_settings(
        cwd=tmp_path, environment={}, runs=Path("here"), agents=[Path("one"), Path("/other")]
    )
    assert found.runs_root == tmp_path / "here"
    assert found.agent_directories == (tmp_path / "one", Path("/other"))
    assert settings(tmp_path, {"SUBAGENT_RUNS": "there"}).runs_root == tmp_path / "there"


def test_agents_come_from_the_flags_then_the_environment_then_the_usual_places(tmp_path: Path) -> None:
    named = {"SUBAGENT_AGENTS": os.pathsep.join(["one", "", "/two"])}
    flags = read_settings(cwd=tmp_path, environment=named, agents=[Path("mine"), Path("yours")])
    assert flags.agent_directories == (tmp_path / "mine", tmp_path / "yours")
    assert settings(tmp_path, named).agent_directories == (tmp_path / "one", Path("/two"))
    usual = (tmp_path / "agents", tmp_path / ".claude" / "agents")
    assert settings(tmp_path).agent_directories == usual
    assert settings(tmp_path, {"SUBAGENT_AGENTS": ""}).agent_directories == usual


@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_is_the_environment_s_or_the_usual_one(tmp_path: Path, what: str) -> None:
    name, number, usual = NUMBERS[what]
    assert number(settings(tmp_path)) == usual
    assert number(settings(tmp_path, {name: "7"})) == 7
    assert number(settings(tmp_path, {name: ""})) == usual


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", " 7", "7 ", "1e3", "x" * 500, "²", "9" * 5_000])
@pytest.mark.parametrize("what", NUMBERS)
def test_a_variable_that_is_no_number_is_named_with_what_to_do(tmp_path: Path, what: str, text: str) -> None:
    name, _, _ = NUMBERS[what]
    with pytest.raises(BadArgument, match=f"^{name} is .* set it to a whole number from") as refused:
        settings(tmp_path, {name: text})
    assert len(refused.value.sentence) < 200


def test_a_flag_goes_before_a_number_of_the_environment(tmp_path: Path) -> None:
    found = read_settings(cwd=tmp_path, environment={"SUBAGENT_MAX_RUNS": "7"}, max_runs=2)
    assert found.max_runs == 2


def test_a_child_knows_its_run_by_its_environment(tmp_path: Path) -> None:
    child = settings(tmp_path, {"SUBAGENT_RUN_ID": "r1", "SUBAGENT_RUN_TOKEN": "secret"})
    assert (child.child_run_id, child.child_token) == ("r1", "secret")
    assert (settings(tmp_path).child_run_id, settings(tmp_path).child_token) == (None, None)


def test_settings_are_of_the_process_where_nothing_else_is_given(tmp_path: Path) -> None:
    code = """
        import os, sys
        os.chdir(sys.argv[1])
        from subagent_server.settings import read_settings
        found = read_settings()
        print(found.cwd, found.runs_root, found.max_runs)
    """
    done = run_python(code, tmp_path, environment={"SUBAGENT_RUNS": "elsewhere", "SUBAGENT_MAX_RUNS": "5"})
    assert done.stdout.split() == [str(tmp_path), str(tmp_path / "elsewhere"), "5"]
