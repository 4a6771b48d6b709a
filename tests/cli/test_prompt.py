"""`subagent prompt`: exactly what the model of a run would get first, and nothing stays behind."""

import json
from pathlib import Path
from typing import Any

from tests.cli.command import Cli, Model, stored
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import says


def without_ids(body: Any, run_id: str) -> Any:
    return json.loads(json.dumps(body).replace(run_id, "RUN"))


def id_in(body: Any) -> str:
    preamble: str = body["system"][-1]["text"]
    return preamble.split("You are run ")[1].split(" ")[0]


def test_it_is_the_request_that_the_model_of_a_run_receives(cli: Cli, model: Model, tmp_path: Path) -> None:
    simulator = model(says("Done."))
    cli.agent("worker", model="haiku", effort="low", outputSchema={"type": "object"}, agents=["worker"])
    (tmp_path / "notes.txt").write_text("Größe", encoding="utf-8")
    asked = ("worker", "Do it.", "--input", "notes.txt")
    shown = cli.json("prompt", *asked)
    assert (simulator.requests, stored(cli)) == ([], [])
    cli("run", *asked, "--wait", "60")
    received = simulator.requests[0].body
    assert without_ids(shown["request"], id_in(shown["request"])) == without_ids(received, id_in(received))
    tokens = shown["estimatedTokens"]
    assert tokens["total"] == sum(tokens[part] for part in ("system", "tools", "messages")) > 100


def test_people_see_each_part_escaped_without_a_key_and_nothing_stays(cli: Cli, tmp_path: Path) -> None:
    cli.agent("worker")
    places = {"TMPDIR": str(tmp_path / "temporary"), "ANTHROPIC_API_KEY": ""}
    (tmp_path / "temporary").mkdir()
    done = cli("prompt", "worker", "Turn \x1b[31mred.", env=places)
    assert done.returncode == 0
    assert "tokens (system " in done.stdout and "an estimate" in done.stdout.splitlines()[0]
    for part in ("You are an agent.", "── tool ask_parent", '"question"', "Turn \\x1b[31mred."):
        assert part in done.stdout
    assert list((tmp_path / "temporary").iterdir()) == []


def test_mcp_servers_are_not_started_unasked(cli: Cli, tmp_path: Path) -> None:
    started = tmp_path / "started"
    cli.agent("worker", mcpServers={"tracker": {"command": "touch", "args": [str(started)]}})
    done = cli("prompt", "worker")
    assert done.returncode == 0 and "(the prompt)" in done.stdout
    assert "MCP servers tracker (--servers starts them)" in done.stderr
    assert not started.exists()
    cli.leaves_with(1, "would never call its model", "prompt", "worker", "--servers")
    assert started.exists()


def test_the_request_is_made_on_this_machine_wherever_runs_go(cli: Cli) -> None:
    cli.agent("worker", placement={"on": "ssh:nowhere.invalid"})
    done = cli("prompt", "worker", env={"SUBAGENT_LAUNCHER": "ssh:nowhere.invalid"})
    assert done.returncode == 0, done.stderr


def test_an_agent_that_is_not_trusted_is_not_begun(cli: Cli) -> None:
    cli.trusts = False
    cli.agent("worker", env={"PATH": "/nowhere"})
    cli.leaves_with(2, "subagent trust", "prompt", "worker")


def test_an_agent_whose_start_is_refused_is_refused_here(cli: Cli) -> None:
    cli.agent("worker", maxTurns=0)
    cli.leaves_with(1, "maxTurns", "prompt", "worker")
    assert "prompt is empty" in cli("prompt", "worker", " ").stderr


def test_an_agent_of_another_runner_has_no_request_to_show(cli: Cli) -> None:
    cli.agent("outside", runner="command", command="true")
    cli.leaves_with(2, "only the built-in loop makes requests here", "prompt", "outside")


def test_the_program_of_a_flow_is_not_executed(cli: Cli, tmp_path: Path) -> None:
    text = "def run() -> None: open('ran', 'w')\n"
    (tmp_path / "agents" / "fan.flow.py").write_text(text, encoding="utf-8")
    cli.leaves_with(2, "fan works by `runner: flow`", "prompt", "fan", "{}")


def test_an_agent_with_a_worktree_is_shown_the_sentence_about_it_and_none_stays(
    cli: Cli, tmp_path: Path
) -> None:
    cli.agent("worker", isolation="worktree")
    (tmp_path / "code").mkdir()
    make_repository(tmp_path / "code")
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = cli("prompt", "worker", "--cwd", "code", env=state)
    assert done.returncode == 0, done.stderr
    assert "in a git worktree of your own, on the branch subagent/worker-" in done.stdout
    assert "subagent" not in git("-C", tmp_path / "code", "branch", "--all")
    assert len(git("-C", tmp_path / "code", "worktree", "list").splitlines()) == 1
    cli.leaves_with(1, "isolation: worktree cannot be kept", "prompt", "worker", env=state)
