"""The host executes and reads nothing that a run could write: each test is an attempt of a boxed run."""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.processes import Identity, this_process
from subagent_server.settings import read_settings
from subagent_server.verbs.live_runs import LiveRun, enter, host_program, live_runs
from subagent_server.worker.protected_paths import protected_paths
from tests.helpers.files import write_program
from tests.helpers.installation import Installation
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import call, says, shell, tool_results
from tests.helpers.world import BOUND, World
from tests.sandbox.boxed import boxed


def planting(target: Path, evidence: Path) -> str:
    """Return the commands that write a program which leaves `evidence` when it is executed."""
    program = f'#!/bin/sh\\ntouch {evidence}\\nexec /usr/bin/{target.name} "$@"\\n'
    return f"mkdir -p {target.parent}; printf '{program}' > {target} && chmod +x {target} && echo planted"


def command(world: World, program: Sequence[str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command of another installation to its end."""
    return subprocess.run(
        [*program, *words],
        cwd=world.work,
        env=world.environment,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


@pytest.mark.parametrize("exists", [True, False], ids=["activated environment", "missing directory"])
def test_a_git_that_a_run_plants_in_a_directory_of_the_path_is_not_executed(
    world: World, exists: bool
) -> None:
    make_repository(world.work)
    programs, evidence = world.work / ".venv/bin", world.home / "executed"
    if exists:
        programs.mkdir(parents=True)
    world.environment["PATH"] = f"{programs}:{world.environment['PATH']}"
    moved, _ = boxed(world, "mv .venv .old && echo moved", planting(programs / "git", evidence))
    assert "moved" not in moved.splitlines()
    boxed(world, "git status")
    boxed(world, "git status", isolation="worktree")
    world.cli("doctor")
    assert "no git repository" in world.cli("demo", "--repo", "nowhere").stderr
    assert not evidence.exists()


def test_a_browser_that_a_run_plants_is_not_opened(world: World) -> None:
    programs, evidence = world.work / ".venv/bin", world.home / "executed"
    assert boxed(world, planting(programs / "shows-it", evidence)) == ["planted"]
    world.environment |= {"BROWSER": "shows-it", "PATH": f"{programs}:{world.environment['PATH']}"}
    with world.http_server():
        assert "#code=" in world.cli("page").stdout
    assert not evidence.exists()


@pytest.mark.parametrize("hook", ["tell-me done", "/bin/sh -c 'tell-me done'"])
def test_a_hook_of_the_user_is_not_taken_from_the_working_directory(world: World, hook: str) -> None:
    programs, evidence = world.work / "node_modules/.bin", world.home / "executed"
    configuration = Path(world.environment.get("XDG_CONFIG_HOME") or world.home / ".config") / "subagent"
    configuration.mkdir(parents=True, exist_ok=True)
    hooks = configuration / "hooks.json"
    hooks.write_text(json.dumps({"onEnd": hook}), encoding="utf-8")
    hooks.chmod(0o600)
    world.environment["PATH"] = f"{programs}:{world.environment['PATH']}"
    boxed(world, planting(programs / "tell-me", evidence))
    boxed(world, "true")
    assert not evidence.exists()


def test_a_program_of_the_user_is_not_taken_from_the_working_copy_around_the_directory(
    tmp_path: Path,
) -> None:
    programs, work = tmp_path / "shop/.venv/bin", tmp_path / "shop/src"
    for directory in (programs, work, tmp_path / "shop/.git"):
        directory.mkdir(parents=True)
    write_program(programs / "tell-me", "#!/bin/sh\n")
    for home, is_used in ((tmp_path / "home", False), (tmp_path / "shop", True)):  # which no run can write
        environment = {"PATH": str(programs), "HOME": str(home)}
        settings = read_settings(environment=environment, cwd=work)
        with nullcontext() if is_used else pytest.raises(NoHostProgram):
            assert host_program(settings, "tell-me") == programs / "tell-me"


def test_agents_and_installation_are_not_written_nor_a_directory_above_them_renamed(world: World) -> None:
    agents = world.work / "conf/agents"
    agents.mkdir(parents=True)
    (agents / "other.md").write_text("---\nname: other\ndescription: x\n---\nx\n", encoding="utf-8")
    installed = Installation(world.work / "tools/.venv", marked=False)
    module = next((world.work / "tools/.venv").glob("lib/*/site-packages/subagent_server/__main__.py"))
    before, path = module.read_bytes(), str(module.relative_to(world.work))
    world.environment |= {"SUBAGENT_AGENTS": f"{world.agents}:{agents}", "SUBAGENT_WARM": "0"}
    world.agent(sandbox="bwrap")
    simulator = world.play(
        shell(
            "mv conf c2; mv tools t2; mv tools/.venv tools/v; rm -rf conf; echo x > conf/agents/evil.md; ls"
        ),
        shell(f"echo planted > {path}; echo fine > fine"),
        call("str_replace_based_edit_tool", command="create", path=path, file_text="planted"),
        says("Done."),
    )
    done = command(world, installed.program, "run", "worker", "Do it.")
    assert done.stdout == "Done.\n", done.stderr
    moved, wrote, edited = (tool_results(request.body)[0] for request in simulator.requests[1:])
    assert moved.count("Device or resource busy") >= 3, moved
    assert "Read-only file system" in moved and "Read-only file system" in wrote
    assert "read-only here" in edited and module.read_bytes() == before
    assert (world.work / "fine").exists()
    assert (agents / "other.md").exists() and not (agents / "evil.md").exists()
    assert not (world.work / "c2").exists() and not (world.work / "t2").exists()
    inside = str(module.parents[1])
    refused = command(world, installed.program, "run", "worker", "Do it.", "--cwd", inside)
    assert refused.returncode == 1 and "installation of subagent" in refused.stderr


@pytest.mark.parametrize("is_served", [False, True], ids=["of the run", "of an agent that it serves"])
def test_a_file_of_an_agent_and_its_prompt_are_not_written(world: World, is_served: bool) -> None:
    directory = world.work / "conf/of it"
    directory.mkdir(parents=True)
    (directory / "prompt.md").write_text("You do it.", encoding="utf-8")
    config = directory / "kid.yaml"
    config.write_text(
        "version: '2.0'\nmodels:\n- {ref: m, display_name: M, id: claude-haiku-4-5, type: anthropic, "
        "api_key_env: ANTHROPIC_API_KEY}\nsubagent: {name: kid, description: x}\n"
        "defaults: {model: m, systemPromptPath: prompt.md}\n",
        encoding="utf-8",
    )
    before = config.read_bytes()
    writes = "cd conf; echo x | tee -a */kid.yaml */prompt.md; mv of* away; cd ..; mv conf away"
    if is_served:
        entry = {"command": "subagent", "args": ["serve", "--config", str(config)]}
        boxed(world, writes, mcpServers={"kid": entry})
    else:
        world.play(shell(writes), says("Done."))
        with world.serve("--config", str(config)) as parent:
            assert parent.call("run_kid", prompt="Do it.", waitSeconds=BOUND)["result"] == "Done."
    assert config.read_bytes() == before
    assert (directory / "prompt.md").read_text(encoding="utf-8") == "You do it."


def test_agents_that_are_reached_by_a_link_of_the_directory_are_not_trusted_to_a_box(world: World) -> None:
    real = world.home / "real-agents"
    real.mkdir()
    (world.work / "agents").symlink_to(real)
    world.environment["SUBAGENT_AGENTS"] = os.pathsep.join([str(world.agents), str(world.work / "agents")])
    world.agent_saying(says("Done."), sandbox="bwrap")
    code, message = world.failed(world.start())
    assert code == "config" and "agents" in message


def test_agents_to_which_a_link_of_their_directory_leads_are_not_written(world: World) -> None:
    shared, text = world.work / "shared", "---\nname: kid\ndescription: x\n---\nx\n"
    for file in (shared / "kid.md", shared / "more/kid.md"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for name in ("kid.md", "more", "later.md"):
        (world.agents / name).symlink_to(shared / name)
    (result,) = boxed(
        world,
        "cd shared; echo x | tee later.md more/new.md; echo x | tee -a kid.md more/kid.md; mv more away; "
        "mv kid.md away; mv ../shared ../away; echo free > free",
    )
    assert "moved out of the working directory" in result and "later.md" in result
    assert (shared / "kid.md").read_text("utf-8") == (shared / "more/kid.md").read_text("utf-8") == text
    assert sorted(each.name for each in shared.iterdir()) == ["free", "kid.md", "more"]


def test_a_link_that_leads_to_several_agents_is_named_once(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    (tmp_path / "real").mkdir()
    agents.symlink_to("real")
    environment = {
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "SUBAGENT_AGENTS": str(agents),
    }
    agent = AgentDefinition(name="worker", source=agents / "worker.md")
    assert protected_paths(agent, environment, tmp_path / "runs", tmp_path).links == [agents]


def test_a_link_among_agents_whose_end_cannot_be_looked_at_ends_no_run(world: World) -> None:
    (world.agents / "far.md").symlink_to("x" * 300)  # as one into a directory of another user
    (world.agents / "far").symlink_to(world.agents / "far.md")
    (world.agents / "near").symlink_to(world.work)
    (world.work / "far.md").symlink_to("x" * 300)
    assert boxed(world, "echo done") == ["done"]


def test_a_home_that_is_no_absolute_path_is_none(tmp_path: Path) -> None:
    agent, root = AgentDefinition(name="worker"), tmp_path / "runs"
    without = protected_paths(agent, {}, root, tmp_path)
    assert protected_paths(agent, {"HOME": "~"}, root, tmp_path) == without


def test_an_agent_in_a_named_directory_that_a_run_makes_is_moved_away(world: World) -> None:
    agents, evidence = world.work / "conf/agents", world.home / "executed"
    world.environment["SUBAGENT_AGENTS"] = os.pathsep.join([str(world.agents), str(agents)])
    text = "---\\nname: evil\\ndescription: x\\nsandbox: none\\n---\\nx\\n"
    planted = f"mkdir -p conf/agents; printf '%b' '{text}' > conf/agents/evil.md; echo planted"
    (result,) = boxed(world, planted)
    assert "planted" in result and "moved out of the working directory" in result
    world.play(shell(f"touch {evidence}"), says("Done."))
    assert "no agent 'evil'" in world.cli("run", "evil", "Do it.").stderr and not evidence.exists()


def test_configuration_and_state_of_ours_and_of_git_are_not_written_below_the_home(world: World) -> None:
    world.agent(sandbox="bwrap", tools="Bash")
    (world.home / ".config/git").mkdir(parents=True)
    writes = "for d in git subagent state/subagent; do echo x > $d/planted; rm -rf $d; done"
    writes += "; flock --nonblock state/subagent/live-runs.lock touch planted"  # every start waits for it
    for place in (".config", ".local"):
        (world.home / place).mkdir(exist_ok=True)
        world.play(shell(writes), says("Done."))
        run_id = world.start(cwd=str(world.home / place))
        assert world.completed(run_id) == "Done."
    assert not list(world.home.rglob("planted"))
    assert all((world.home / place).is_dir() for place in (".config/git", ".local/state/subagent"))
    world.ended(run_id := world.start(cwd=str(world.home / ".local/state/subagent")))
    assert "which no run may write" in str(world.meta(run_id).error)


@pytest.mark.parametrize("root", [".subagent/runs", "var/state/runs"])
def test_a_run_cannot_move_its_runs_root_away(world: World, root: str) -> None:
    world.environment["SUBAGENT_RUNS"] = str(world.work / root)
    world.agent(sandbox="bwrap")
    simulator = world.play(shell(f"mv {root.partition('/')[0]} away; ls -A; ls {root}"), says("Done."))
    assert world.cli("run", "worker", "Do it.").stdout == "Done.\n"
    (result,) = tool_results(simulator.requests[1].body)
    assert "Device or resource busy" in result and "away" not in result.splitlines()
    assert (world.work / root).is_dir()


def test_agents_and_roots_of_other_live_runs_are_held_too(world: World) -> None:
    other_root, other_agents = world.work / "deep/other-runs", world.work / "deep/er/agents"
    for place in (other_root, other_agents):
        place.mkdir(parents=True)
    enter(world.home / ".local/state/subagent", LiveRun(this_process(), other_root, [other_agents], []))
    (result,) = boxed(
        world, "touch deep/er/agents/x.md; mv deep d2; ls -A deep/other-runs; touch deep/er/free"
    )
    assert "Read-only file system" in result and "Device or resource busy" in result
    assert (world.work / "deep/er/free").exists()


def test_the_directory_of_the_zygote_is_hidden_in_a_place_to_write(world: World) -> None:
    cache = world.home / ".cache"
    (cache / "session").mkdir(mode=0o700, parents=True)
    world.environment |= {"SUBAGENT_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": str(cache / "session")}
    world.environment["SUBAGENT_WARM"] = "0"  # none is started: it would cost more than the rest
    place = cache / "session/subagent"
    place.mkdir(mode=0o700)
    (place / "its.secret").touch()
    (result,) = boxed(
        world,
        f"touch {cache}/mine; ls -A {place}; touch {place}/x; mv {place} {cache}/away",
        sandboxWrite=[str(cache)],
    )
    assert (cache / "mine").exists() and not (place / "x").exists()
    assert result.startswith("touch:") and "Read-only file system" in result and "busy" in result


@pytest.mark.parametrize(
    ("where", "key"),
    [({}, "sandboxWrite"), ({"isolation": "worktree"}, "sandboxRead")],
    ids=["project", "worktree"],
)
def test_our_state_is_hidden_in_a_place_of_the_agent(world: World, where: dict[str, str], key: str) -> None:
    make_repository(world.work)
    state = world.home / ".local/state/subagent"
    for place in (state, state / "worktrees", state / "worktrees/of-another"):
        place.mkdir(0o700, parents=True)
    (state / "http-tokens").write_text("default: SECRET", encoding="utf-8")
    (result,) = boxed(
        world,
        f"cat {state}/http-tokens; cd {state}; ls -d worktrees/of*; touch worktrees/of-another/x; "
        "touch live-runs.new; cd -; touch here; git status -s",
        **{key: [str(world.home / ".local")]},
        **where,
    )
    assert "SECRET" not in result and "worktrees/of-another\n" not in result and "?? here" in result
    assert not (state / "worktrees/of-another/x").exists() and not (state / "live-runs.new").exists()


@pytest.mark.parametrize("place", ["runs", "part/of/it"])
def test_a_root_of_ended_runs_is_held_too(world: World, place: str) -> None:
    world.agent_saying(says("Done."), sandbox="bwrap")
    assert world.cli("--runs", place, "run", "worker", "Do it.").stdout == "Done.\n"
    (record,) = world.work.glob(f"{place}/2*")
    (result,) = boxed(world, f"touch {record}/forged; ls -A {place} | wc -l")
    assert result.endswith("\n0") and not (record / "forged").exists()


@pytest.mark.parametrize("hidden", [False, True], ids=["it came later", "it is hidden there"])
def test_no_run_works_whose_records_a_live_run_could_write(world: World, hidden: bool) -> None:
    hides = [world.work / "runs"] if hidden else []
    another = LiveRun(this_process(), world.home / "other", [], [world.work], hides)
    enter(world.home / ".local/state/subagent", another)
    world.agent_saying(says("Done."), sandbox="bwrap")
    done = world.cli("--runs", "runs", "run", "worker", "Do it.")
    assert done.stdout == ("Done.\n" if hidden else "")
    assert hidden or ("could write those in" in done.stderr and "--runs" in done.stderr)


def test_no_run_is_forgotten_for_the_length_of_the_paths_of_others(tmp_path: Path) -> None:
    deep = [Path("/", *["\x01" * 250] * 16, str(number)) for number in range(100)]
    for _ in range(6):
        enter(tmp_path / "state", LiveRun(this_process(), tmp_path / "a", deep, deep))
    assert len(live_runs(tmp_path / "state")) == 6


def test_records_of_ended_runs_hold_nothing(tmp_path: Path) -> None:
    gone = Identity(this_process().host, 2**22 - 1, 1, this_process().boot_id)
    enter(tmp_path / "state", LiveRun(gone, tmp_path / "a", [], [tmp_path]))
    mine = LiveRun(this_process(), tmp_path / "b", [], [])
    assert enter(tmp_path / "state", mine) == []
    assert [run.root for run in live_runs(tmp_path / "state")] == [tmp_path / "b"]


@pytest.mark.parametrize("content", ["", "{", "[1, null, {}]", '{"worker": 1}', "[" * 100_000])
def test_a_damaged_file_of_live_runs_is_begun_anew(tmp_path: Path, content: str) -> None:
    state = tmp_path / "state"
    mine = LiveRun(this_process(), tmp_path / "b", [], [])
    enter(state, mine)
    (state / "live-runs.json").write_text(content, encoding="utf-8")
    assert live_runs(state) == []
    assert enter(state, mine) == []
    assert len(live_runs(state)) == 1


def test_git_of_the_directory_is_read_only_and_shown_without_its_credentials(world: World) -> None:
    make_repository(world.work)
    address = "https://x-access-token:gho-0a1b2c3d4e5f@github.com/o/r"
    git("-C", world.work, "remote", "add", "origin", address)
    submodule = world.work / ".git/modules/libs/one"
    git("init", "--quiet", "--bare", submodule)
    git("-C", submodule, "remote", "add", "origin", address)
    told, shown = boxed(
        world,
        "git branch x; ln -sf ~/.bashrc .git/logs/HEAD; echo x > .git/COMMIT_EDITMSG",
        "cat .git/config .git/modules/libs/one/config; git remote -v; echo x >> .git/config; git status -sb",
    )
    assert told.count("Read-only file system") == 3 and "`isolation: worktree`" in told
    assert "0a1b2c3d4e5f" not in shown and "github.com/o/r" in shown
    assert "Read-only file system" in shown and "## " in shown
    assert git("-C", world.work, "remote", "get-url", "origin").strip() == address
    assert git("-C", world.work, "status", "--porcelain") == ""
