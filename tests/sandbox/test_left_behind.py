"""What other programs execute and a run brings: moved during a command, named at the end, and given back."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run.errors import BadArgument
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import Caller, NotAllowed
from subagent_server.verbs.left_behind import restore
from subagent_server.verbs.views import AS_TOOLS, RunView, run_view
from tests.helpers.mcp_servers import scripted
from tests.helpers.repositories import git, make_repository
from tests.helpers.stored import make_stored
from tests.helpers.turns import asks, says, shell, tool_results
from tests.helpers.turns import call as tool_call
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World, kill

HOOK = ".git/hooks/pre-commit"


def view_of(world: World, run_id: str) -> RunView:
    """Return the view that a parent has."""
    return run_view(world.store, world.look(run_id), AS_TOOLS)


def played(world: World, *commands: str, **keys: Any) -> tuple[str, list[str]]:
    """Let a run do commands, one a call; return its id and what the model was told of each."""
    simulator = world.agent_saying(*map(shell, commands), says("Done."), **keys)
    run_id = world.start()
    assert world.completed_and_gone(run_id) == "Done."
    return run_id, [tool_results(request.body)[0] for request in simulator.requests[1:]]


def test_what_a_run_has_left_that_can_run_code_is_in_its_result_and_its_view(world: World) -> None:
    make_repository(world.work)
    world.agent(tools="Bash")
    job = f"while [ -d .git ]; do echo x > {HOOK}; done &"  # it ends with the run
    world.play(
        shell(f"{job} mkdir -p 'sub\n\x1b[31m/.vscode'; echo x > {HOOK}"),
        says("Done."),
    )
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    left = [HOOK, "sub\ufffd\ufffd[31m/.vscode/"]
    assert world.result(run_id).can_run_code == left
    (warning,) = view_of(world, run_id).warnings or []
    assert HOOK in warning and "\x1b" not in warning and "before you use git" in warning
    assert world.events(run_id, "warning")[-1]["canRunCode"] == left


@pytest.mark.parametrize("end", ["stop", "kill", "kill all"])
def test_a_run_that_is_ended_says_what_it_has_left_too(world: World, end: str) -> None:
    make_repository(world.work)
    world.agent(tools="Bash")
    git("-C", world.work, "config", "core.hooksPath", "tools/hooks")
    own = "mkdir -p tools/hooks; echo x > tools/hooks/pre-push"
    world.play(shell(f"true {API_KEY}; echo x > .mcp.json; {own}; echo x > {HOOK}; sleep 1000"))
    run_id = world.start()
    wait_for((world.work / HOOK).exists, BOUND, "the hook")
    if end == "stop":
        world.stop(run_id)
    else:
        if end == "kill all":
            kill(world.shim(run_id))
        kill(world.worker(run_id))
        wait_for(lambda: world.look(run_id).live is False, BOUND, "the end of the run")
    world.ended(run_id)
    world.gone(run_id)
    view = view_of(world, run_id)
    assert HOOK in " ".join(view.warnings or [])
    if end == "kill all":  # nobody looked at once, and what is found later may be the person's
        assert view.quarantined is None and ".mcp.json, tools/hooks" in " ".join(view.warnings or [])
    else:
        assert view.quarantined == ["001 .mcp.json", "002 tools/hooks"]
        assert not (world.work / ".mcp.json").exists()
    for path in world.paths(run_id).directory.rglob("*.json"):
        assert API_KEY not in path.read_text(encoding="utf-8"), path


def test_what_came_during_a_command_is_moved_and_said_and_given_back(world: World) -> None:
    run_id, (first, second, third) = played(
        world,
        "echo '{}' > .mcp.json; mkdir .vscode; echo x > .vscode/tasks.json; echo made",
        "ls -A",
        "git init -q . && ls -A",
        sandbox="bwrap",
    )
    assert first.startswith("made\n[moved out of the working directory") and ".mcp.json, .vscode" in first
    assert second == "(no output)" and third.startswith(".git\n[moved out of")
    assert list(world.work.iterdir()) == []
    view = view_of(world, run_id)
    assert view.quarantined == ["001 .mcp.json", "002 .vscode", "003 .git"]
    assert world.result(run_id).can_run_code is None
    first_event, second_event = world.events(run_id, "warning")
    assert (
        first_event["quarantined"] == ["001 .mcp.json", "002 .vscode"] and "mkdir" in first_event["message"]
    )
    assert second_event["quarantined"] == ["003 .git"]
    assert "Moved to quarantine" in world.paths(run_id).log.path.read_text(encoding="utf-8")
    shown = world.cli("show", run_id)
    assert "002 .vscode" in shown.stdout and "--restore NUMBER" in shown.stdout
    done = world.cli("show", run_id, "--restore", ".mcp.json")
    assert done.returncode == 0 and (world.work / ".mcp.json").read_text(encoding="utf-8") == "{}\n"
    done = world.cli("show", run_id, "--restore", "2", "--json")
    assert json.loads(done.stdout) == {"runId": run_id, "restored": str(world.work / ".vscode")}
    assert (world.work / ".vscode" / "tasks.json").exists()
    (world.work / ".git").mkdir()
    refused = world.cli("show", run_id, "--restore", ".git")
    assert refused.returncode == 2 and "There is something at '.git'" in refused.stderr
    assert view_of(world, run_id).quarantined == ["003 .git"]
    missing = world.cli("show", run_id, "--restore", "007")
    assert missing.returncode == 2 and "003 .git" in missing.stderr


def test_a_run_and_a_forged_record_give_nothing_back(tmp_path: Path) -> None:
    (run_id,) = make_stored(tmp_path / "runs", 1)
    store, slot = RunStore(tmp_path / "runs"), tmp_path / "runs" / run_id / "quarantine" / "001"
    slot.mkdir(parents=True)
    (slot / "moved").touch()
    request = tmp_path / "runs" / run_id / "request.json"
    facts = {**json.loads(request.read_bytes()), "cwd": str(tmp_path / "work")}
    request.write_text(json.dumps(facts), encoding="utf-8")
    (tmp_path / "other").mkdir()
    forged = {"path": str(tmp_path / "other" / ".bashrc"), "at": "", "during": ""}
    (slot / "record.json").write_text(json.dumps(forged), encoding="utf-8")
    with pytest.raises(NotAllowed, match="Only a person"):
        restore(store, run_id, "001", Caller(run_id))
    with pytest.raises(BadArgument, match="was not in the directory"):
        restore(store, run_id, "001", Caller())
    assert not list((tmp_path / "other").iterdir())


def test_what_a_person_writes_while_no_command_runs_stays_and_is_named(world: World) -> None:
    (world.work / ".claude").mkdir()
    run_id = world.asking_run(shell("true"), asks("Which?"), shell("ls -A"), says("Done."), sandbox="bwrap")
    assert [path.name for path in world.work.iterdir()] == [".claude"], "nothing of ours is there"
    (world.work / ".mcp.json").write_text("{}", encoding="utf-8")
    (world.work / ".claude" / "settings.local.json").write_text("{}", encoding="utf-8")
    world.reply(run_id, "This.")
    assert world.completed(run_id) == "Done."
    assert (world.work / ".mcp.json").exists() and (world.work / ".claude/settings.local.json").exists()
    assert world.result(run_id).can_run_code == [".claude/settings.local.json", ".mcp.json"]
    assert view_of(world, run_id).quarantined is None


def test_what_init_writes_while_a_command_runs_stays(world: World) -> None:
    make_repository(world.work)
    world.agent(sandbox="bwrap")
    world.play(shell("touch begun; while [ ! -e go ]; do sleep 0.05; done; rm begun go"), says("Done."))
    run_id = world.start()
    wait_for((world.work / "begun").exists, BOUND, "the command")
    done = world.cli("init", "claude", "-y")
    assert done.returncode == 0, done.stderr
    (world.work / "go").touch()
    assert world.completed(run_id) == "Done."
    assert (world.work / ".mcp.json").exists() and (world.work / ".claude").is_dir()
    assert view_of(world, run_id).quarantined is None


def test_a_background_process_is_seen_during_a_command_and_named_after_it(world: World) -> None:
    world.agent(sandbox="bwrap")
    later = "(while [ ! -e {0} ]; do sleep 0.05; done; echo x > {1}; touch {0}.done) >/dev/null 2>&1 &"
    waiting = "touch first; while [ ! -e first.done ]; do sleep 0.05; done"
    first, second = later.format("first", ".envrc"), later.format("second", ".mcp.json")
    world.play(shell(f"{first} {second}"), shell(waiting), asks("Which?"), says("Done."))
    run_id = world.start_asking()
    (world.work / "second").touch()
    wait_for((world.work / "second.done").exists, BOUND, "the file")
    world.reply(run_id, "This.")
    assert world.completed(run_id) == "Done."
    assert view_of(world, run_id).quarantined == ["001 .envrc"]
    assert world.result(run_id).can_run_code == [".mcp.json"]


def test_what_a_server_writes_at_its_end_is_named(world: World) -> None:
    server = scripted()
    words = ["-c", '"$@"; echo {} > .mcp.json', "sh", server["command"], *server["args"]]
    ends = {**server, "command": "sh", "args": words, "sandboxRead": [*server["sandboxRead"], sys.prefix]}
    world.agent(mcpServers={"ends": ends}, sandbox="bwrap")
    world.play(says("Done."))
    run_id = world.start()
    world.completed_and_gone(run_id)
    assert world.result(run_id).can_run_code == [".mcp.json"]


def test_what_the_author_names_in_sandbox_write_stays(world: World) -> None:
    run_id, (result,) = played(world, "echo x > .mcp.json", sandbox="bwrap", sandboxWrite=[".mcp.json"])
    assert result == "(no output)" and (world.work / ".mcp.json").exists()
    assert view_of(world, run_id).quarantined is None


def test_a_program_of_code_mode_and_an_edit_are_watched(world: World) -> None:
    world.agent(codeMode=True, mcpServers={"shop": scripted("price")})
    code = "open('.envrc', 'w').write('x'); print('made')"
    waiting = "(while [ ! -e file ]; do sleep 0.01; done; echo x > .mcp.json) >/dev/null 2>&1 &"
    simulator = world.play(
        tool_call("execute_python_code", code=code, executionTimeout=60),
        shell(waiting),
        tool_call("str_replace_based_edit_tool", command="create", path="file", file_text="x"),
        says("Done."),
    )
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    told = tool_results(simulator.requests[1].body)[0]
    assert told.startswith("made") and "moved out of the working directory" in told
    assert (view_of(world, run_id).quarantined or [""])[0] == "001 .envrc"


def test_an_external_program_is_watched_from_start_to_end(world: World) -> None:
    script = world.home / "program.py"
    script.write_text("open('.envrc', 'w').write('x'); print('Done.')", encoding="utf-8")
    world.agent("worker", "", runner="command", command=sys.executable, args=[str(script)])
    run_id = world.start()
    assert world.completed_and_gone(run_id) == "Done."
    assert view_of(world, run_id).quarantined == ["001 .envrc"] and not (world.work / ".envrc").exists()


def test_a_clone_works_and_a_repository_that_came_is_disarmed(world: World) -> None:
    make_repository(world.home / "origin")
    world.agent(sandbox="bwrap", sandboxRead=[str(world.home / "origin")])
    effect = world.home / "effect"
    hook = (
        f"printf '#!/bin/sh\\ntouch {effect}\\n' > evil/.git/hooks/post-checkout; chmod +x evil/.git/hooks/*"
    )
    world.play(
        shell(f"git clone -q {world.home / 'origin'} clone && git -C clone status --porcelain"),
        shell(f"git init -q evil; {hook}; git -C evil config core.fsmonitor 'touch {effect}'"),
        says("Done."),
    )
    run_id = world.start()
    assert world.completed_and_gone(run_id) == "Done."
    assert world.result(run_id).can_run_code == ["clone/.git/", "evil/.git/"]
    assert view_of(world, run_id).quarantined == ["001 evil/.git/hooks", "002 evil/.git/config"]
    git("-C", world.work / "clone", "fetch", "--quiet")
    git("-C", world.work / "clone", "log")
    git("-C", world.work / "evil", "checkout", "-q", "-b", "other")
    git("-C", world.work / "evil", "status")
    assert not effect.exists()


def test_neighbours_in_one_project_are_not_warned_of_each_other(world: World) -> None:
    make_repository(world.work)
    before = sorted(path.name for path in world.work.iterdir())
    world.agent("plain", sandbox="bwrap")
    world.agent("fixer", sandbox="bwrap", isolation="worktree")
    world.play(shell("sleep 0.3; ls -A; mkdir -p /tmp/src; date > /tmp/src/x"), says("Done."))
    runs = [world.start(agent=name) for name in ("plain", "fixer", "plain", "fixer")]
    for run_id in runs:
        meta = world.ended(run_id)
        assert meta.status is Status.COMPLETED, meta.error
        world.gone(run_id)
        assert view_of(world, run_id).warnings is None and view_of(world, run_id).quarantined is None
        assert world.result(run_id).can_run_code is None
    assert git("-C", world.work, "status", "--porcelain") == ""
    assert sorted(path.name for path in world.work.iterdir()) == before
