"""What the programs of a run reach in their box, as its model and a person see it."""

import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run.agent_definition import AgentDefinition, SandboxLimits, ServerDefinition
from subagent_server.run.errors import RunRefused
from subagent_server.sandbox import verify
from subagent_server.sandbox.box import Rules, build_box, find_box_program
from subagent_server.sandbox.readable import BoxRefused, PathRefused
from subagent_server.sandbox.verify import check_box, discard, try_box
from subagent_server.worker.sandbox_setup import without_box
from tests.helpers.bubblewrap import settings
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import calls, says, shell, tool_results, use
from tests.helpers.world import API_KEY, World
from tests.sandbox.boxed import boxed


def a_shell_in_a_box(world: World) -> None:
    (world.home / "canary.txt").write_text("CANARY", encoding="utf-8")
    (world.work / "sub").mkdir()
    (world.work / ".mcp.json").write_text("{}", encoding="utf-8")
    wrote, home, secrets, walls, private, ended, left_with, anew = boxed(
        world,
        "pwd; echo made > made.txt; cat made.txt; cd sub; export LASTS=yes",
        f"pwd; echo $LASTS; cat {world.home}/canary.txt; ls -A {world.home}; cat {world.runs}/*/request.json",
        "env; cat /proc/*/environ | tr '\\0' '\\n' | grep -E 'KEY|TOKEN|SECRET|SUBAGENT'",
        "for f in /etc/x /usr/x /x /proc/sys/kernel/core_pattern ../.mcp.json; do echo x > $f; done",
        "touch /tmp/private; ls -A /tmp | grep private",
        "kill $$",
        "exit 254",
        "pwd; echo ${LASTS:-lost}; ls -A /tmp | grep private",
    )
    assert wrote == f"{world.work}\nmade"
    assert (world.work / "made.txt").read_text(encoding="utf-8") == "made\n"
    assert home.startswith(f"{world.work}/sub\nyes\ncat: ") and "CANARY" not in home
    assert home.count("No such file") == 2, home
    assert API_KEY not in secrets and "SUBAGENT" not in secrets and secrets.endswith("[exit code 1]")
    assert walls.count("Read-only file system") + walls.count("Permission denied") >= 4, walls
    assert "[read-only in this sandbox, on purpose" in walls
    assert private == "private"
    assert "[the shell was ended by SIGTERM (exit code 143)" in ended
    assert "[the shell ended with exit code 254" in left_with, "which is no signal"
    assert anew == f"{world.work}\nlost\n[exit code 1]"
    left = sorted(path.name for path in world.work.iterdir())
    assert left == [".mcp.json", "made.txt", "sub"], left


def test_a_shell_in_a_box_writes_its_directory_and_sees_no_home_no_key_and_no_run(world: World) -> None:
    a_shell_in_a_box(world)


def test_a_model_sees_nothing_of_ours_and_reads_refusals_of_git_as_rules(world: World) -> None:
    make_repository(world.home / "project")
    git("-C", world.home / "project", "worktree", "add", "--quiet", world.work / "tree")
    world.agent(sandbox="bwrap", tools="Bash, Read, LS")
    view = use("str_replace_based_edit_tool", command="view", path=".")
    simulator = world.play(
        shell("touch mine; git status --short; git commit -qam x"), calls(view, use("ls")), says("Done.")
    )
    assert world.completed(world.start(cwd=str(world.work / "tree"))) == "Done."
    (refused,) = tool_results(simulator.requests[1].body)
    viewed, listed = tool_results(simulator.requests[2].body)
    assert refused.startswith("?? mine\n") and "index.lock': Read-only file system" in refused
    assert "[read-only in this sandbox, on purpose" in refused and "`isolation: worktree`" in refused
    assert viewed.splitlines()[1:] == ["mine"] and listed.splitlines() == [".git", "mine"]


def test_tools_of_uv_are_shown_in_a_directory_where_uvx_writes(world: World) -> None:
    tools = world.home / ".local" / "share" / "uv" / "tools"
    (tools / "ruff").mkdir(parents=True)
    (tools.parent / "credentials").mkdir()  # of `uv auth login`
    (made,) = boxed(world, f"cd {tools} && touch .tmp && ls -A . ..; touch ruff/x || ls -A ruff")
    assert made.split()[:5] == [".:", ".tmp", "ruff", "..:", "tools"] and "ruff/x': Read-only" in made
    assert list(tools.iterdir()) == [tools / "ruff"]


def test_places_elsewhere_are_written_if_the_agent_names_them_and_are_not_too_much(world: World) -> None:
    cache = world.home / "cache"
    cache.mkdir()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as lasting:
        places = ["~/cache", "/missing", ".claude/agents", lasting]
        command = f"echo kept > ~/cache/new; mkdir ~/other; mv ~/cache/new {lasting}"
        (wrote,) = boxed(world, command, sandboxWrite=places)
        assert wrote == "(no output)" and Path(lasting, "new").read_text(encoding="utf-8") == "kept\n"
    assert not (world.home / "other").exists()
    world.agent("greedy", sandbox="auto", sandboxWrite=[str(world.runs)])
    code, message = world.failed(world.start("Go.", agent="greedy"))
    assert code == "config" and message.startswith(f"sandboxWrite cannot be kept: {world.runs} is ")


@pytest.mark.parametrize("place", ["/usr", "/", "/etc", "home", "above home", "hidden"])
def test_a_place_that_is_too_much_is_not_written(tmp_path: Path, place: str) -> None:
    home, hidden = tmp_path / "home", tmp_path / "runs"
    named = {"home": home, "above home": tmp_path, "hidden": hidden / "below"}
    rules = Rules(
        cwd=tmp_path / "work",
        environment={"HOME": str(home), **settings()},
        write=[named.get(place, Path(place))],
        hidden=[hidden],
    )
    with pytest.raises(PathRefused, match="sandboxWrite cannot be kept"):
        find_box_program(rules)


def test_no_box_is_made_in_a_home_directory(tmp_path: Path) -> None:
    rules = Rules(cwd=tmp_path, environment={"HOME": str(tmp_path), **settings()})
    with pytest.raises(BoxRefused, match="is the home directory"):
        find_box_program(rules)


def test_a_search_in_a_box_finds_what_it_finds_outside_and_follows_nothing_out_of_it(world: World) -> None:
    (world.home / "secret.txt").write_text("needle", encoding="utf-8")
    (world.work / "sub").mkdir()
    (world.work / "sub/found.txt").write_text("needle", encoding="utf-8")
    (world.work / "sub/ignored.txt").write_text("needle", encoding="utf-8")
    (world.work / ".gitignore").write_text("ignored.txt\n", encoding="utf-8")
    (world.work / "sub/link").symlink_to(world.home)
    searches = [
        use("grep", pattern="needle"),
        use("grep", pattern="needle", path="sub"),
        use("glob", pattern="**/*.txt"),
    ]
    found = []
    for sandbox in ("none", "bwrap"):
        world.agent("searcher", tools="Grep, Glob", sandbox=sandbox)
        simulator = world.play(calls(*searches), says("Done."))
        assert world.completed(world.start("Search.", agent="searcher")) == "Done."
        found.append(tool_results(simulator.requests[-1].body))
    assert found[0] == found[1] == ["sub/found.txt"] * 3


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"sandbox": "bwrap"}, "sandbox: bwrap"),
        ({"network": False}, "network: false"),
        ({"sandbox_limits": SandboxLimits(processes=20)}, "sandboxLimits"),
        ({"mcp_servers": {"x": ServerDefinition(command="y", network=False)}}, "mcpServers.x.network"),
        ({"mcp_servers": {"x": ServerDefinition(command="y", sandbox=True)}}, "mcpServers.x.sandbox"),
    ],
)
def test_a_box_that_the_agent_insists_on_is_never_left_out(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(RunRefused, match=f"^{field} cannot be kept: there is none") as refused:
        without_box(AgentDefinition(name="strict", **keys), "there is none")
    assert refused.value.failure_code == "config"


FAKES = {
    "runs the command without a box": '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n',
    "refuses": "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n",
    "is of 0.6": "#!/bin/sh\necho 'bwrap: Unknown option --disable-userns' >&2\nexit 1\n",
    "ends at once": "#!/bin/sh\n",
    "hangs": "#!/bin/sh\nexec sleep 1000\n",
}


@pytest.mark.parametrize("fake", FAKES)
def test_a_bubblewrap_that_makes_no_box_is_found_out(
    tmp_path: Path, fake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_SECONDS", 1.0)
    program = write_program(tmp_path / "bwrap", FAKES[fake])
    (tmp_path / "work").mkdir()
    environment = {"HOME": str(tmp_path), "SUBAGENT_BWRAP": str(program)}
    with pytest.raises(BoxRefused) as refused:
        try_box(build_box(Rules(cwd=tmp_path / "work", environment=environment)))
    assert ("No permissions" in refused.value.reason) == (fake == "refuses")
    assert ("0.8 or later" in refused.value.reason) == (fake == "is of 0.6")
    assert refused.value.passes == (fake == "hangs")  # a stalled machine must not take a run out of its box


def test_a_program_that_is_killed_before_its_box_is_looked_at_may_start_again(tmp_path: Path) -> None:
    box = build_box(Rules(cwd=tmp_path, environment={**os.environ, **settings()}))
    started = box.start(["sh", "-c", "kill -9 $$"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)  # a busy machine kills later than it looks
    with pytest.raises(BoxRefused) as refused:
        check_box(started, box)
    discard(started)
    assert refused.value.passes


def test_a_bubblewrap_that_another_run_can_write_makes_no_box(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    program = write_program(tmp_path / "tools" / "bwrap", FAKES["ends at once"])
    environment = {"HOME": str(tmp_path / "home"), "SUBAGENT_BWRAP": str(program)}
    rules = Rules(cwd=tmp_path / "work", environment=environment)
    assert find_box_program(rules) == program
    with pytest.raises(BoxRefused, match="a run can write it"):
        find_box_program(replace(rules, written=[program.parent]))


def test_without_a_box_no_command_runs_if_the_agent_insists_else_each_view_says_so(world: World) -> None:
    program = write_program(world.home / "bwrap", FAKES["runs the command without a box"])
    world.environment["SUBAGENT_BWRAP"] = str(program)
    world.agent("strict", sandbox="bwrap")
    world.agent("free", sandbox="auto")
    world.play(shell("echo ran > ran.txt"), says("Done."))
    code, message = world.failed(world.start("Go.", agent="strict"))
    assert code == "config" and message.startswith("sandbox: bwrap cannot be kept: ")
    assert not (world.work / "ran.txt").exists()
    run_id = world.start("Go.", agent="free")
    assert world.completed(run_id) == "Done."
    assert "unsandboxed" in world.events(run_id, "run_started")[0]["sandbox"]
    assert "unsandboxed" in world.cli("show", run_id).stdout
    assert (world.work / "ran.txt").exists()
    assert "Sandbox: none, so programs of runs have all rights" in world.cli("doctor").stderr


BOMB = """python3 -c '
import os, signal
made = []
try:
    while len(made) < 2000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
except OSError as error:
    print(error.strerror)
for pid in made:
    os.kill(pid, signal.SIGKILL)
'"""


def test_a_box_that_is_killed_is_a_new_shell_and_its_processes_are_bounded(world: World) -> None:
    killed, bombed = boxed(world, "kill -9 $$; sleep 60", BOMB, sandboxLimits={"processes": 40})
    assert "[the shell was ended by SIGKILL" in killed
    assert bombed == "Resource temporarily unavailable"


GONE = "bwrap: Can't find source path /gone: No such file or directory"


def failing_bubblewrap(world: World, starts: str, words: str = GONE) -> None:
    """Let bubblewrap fail at these starts, counted from 1, as where a path has vanished since the build."""
    real, program = settings().get("SUBAGENT_BWRAP", "/usr/bin/bwrap"), world.home / "bwrap"
    text = f"""#!/bin/sh
echo >> {program}.starts
case $(wc -l < {program}.starts) in {starts})
    echo "{words}" >&2; exit 1;;
esac
exec {real} "$@"
"""
    write_program(program, text)
    world.environment["SUBAGENT_BWRAP"] = str(program)


def test_a_box_that_fails_for_a_reason_that_passes_is_built_once_more(world: World) -> None:
    failing_bubblewrap(world, "1")
    (result,) = boxed(world, "echo works", sandbox="auto")
    assert result == "works"


@pytest.mark.parametrize(
    ("starts", "words"), [("*", GONE), ("1|3", "bwrap: Can't bind mount /gone")], ids=["everywhere", "here"]
)
def test_a_box_that_fails_twice_so_ends_the_run_with_storage_and_the_path(
    world: World, starts: str, words: str
) -> None:
    failing_bubblewrap(world, starts, words)
    world.agent_saying(shell("touch ran"), says("Done."), sandbox="auto")
    code, message = world.failed(world.start())
    assert code == "storage" and "/gone" in message
    assert not (world.work / "ran").exists()
