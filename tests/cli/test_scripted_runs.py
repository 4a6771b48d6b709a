"""`subagent run --script`: a script plays the model, of the run and of those below; no key, no bill."""

import json

from subagent_server.extensions.simulator import Simulator
from tests.cli.command import FAILED, Cli, stored
from tests.helpers.turns import call, says, shell

NO_KEY = {"ANTHROPIC_API_KEY": ""}
PROXY = {"HTTP_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "odd://127.0.0.1:1", "NO_PROXY": "::1/128"}
"""A proxy that leads to no loopback, and what the library for HTTP cannot read."""


def scripted(cli: Cli, *turns: object, **more: object) -> str:
    """Write a script and return the name of its file."""
    (cli.home / "script.json").write_text(json.dumps({"turns": turns, **more}), encoding="utf-8")
    return "script.json"


def test_a_script_plays_the_model_of_a_detached_run_without_key_bill_and_proxy(cli: Cli) -> None:
    where = {"baseUrl": "http://192.0.2.1", "apiKeyEnv": "OTHER_KEY"}
    cli.agent("worker", model="haiku", limits={"budgetUsd": 1}, **where)
    script = scripted(cli, shell("echo from the script"), says("Played."))
    run_id = cli("run", "worker", "Do it.", "--script", script, "--detach", env=NO_KEY | PROXY).stdout.strip()
    (view,) = cli.json("wait", run_id)
    assert (view["result"], view["usage"]["turns"]) == ("Played.", 2)
    assert "costUsd" not in view["usage"] and view["usage"]["inputTokens"] > 0
    assert view["warnings"] == [
        "The model is played by a script, so nothing is billed and no budget is watched."
    ]
    assert "from the script" in cli("logs", run_id).stdout


def test_a_run_below_a_scripted_run_is_played_by_the_same_script(cli: Cli) -> None:
    cli.agent("worker", model="haiku", placement={"on": "ssh:nowhere.invalid"})
    cli.agent("lead", agents=["worker"])
    below = {"when": {"system": "of the subagent worker,"}, "turns": [says("Played below.")]}
    script = scripted(
        cli, call("run_worker", prompt="Do it.", waitSeconds=60), says("Done."), conversations=[below]
    )
    with Simulator({"turns": [says("Billed.")]}) as real:
        address = {"ANTHROPIC_BASE_URL": real.base_url}
        assert cli("run", "lead", "Lead.", "--script", script, env=address).stdout == "Done.\n"
        assert real.requests == []
    _, worker = stored(cli)
    assert cli.json("show", worker)["result"] == "Played below."
    assert cli.store.read_request(worker).scripted and "played by a script" in cli("logs", worker).stdout


def test_a_scripted_run_is_not_repeated_or_carried_on_by_a_real_model(cli: Cli) -> None:
    cli.agent("worker")
    script = scripted(cli, says("Played."))
    assert cli("run", "worker", "Do it.", "--script", script, env=NO_KEY).returncode == 0
    for again in (("continue", "@last", "Go on."), ("rerun", "@last"), ("rerun", "@last", "--edit")):
        cli.leaves_with(2, "was a script", *again, env={"EDITOR": "touch edited"})
    assert not (cli.home / "edited").exists(), "it is refused before somebody writes"
    assert len(stored(cli)) == 1
    assert cli("rerun", "@last", "--script", "script.json", env=NO_KEY).stdout == "Played.\n"


def test_the_next_step_after_the_failure_of_a_scripted_run_names_a_script(cli: Cli) -> None:
    run_id = cli.made("aaaaaa", FAILED, scripted=True)
    words = cli.json("show", run_id)["instructions"]
    assert f"`subagent continue {run_id} --script FILE` continues it" in words


def test_a_script_that_cannot_be_played_starts_nothing(cli: Cli) -> None:
    cli.agent("worker")
    (cli.home / "script.yaml").write_text("turns: [{txt: Hello}]", encoding="utf-8")
    did_you_mean = "has no key 'txt' (did you mean 'text'?)"
    for name, said in (("script.yaml", did_you_mean), ("no.yaml", "cannot be read")):
        cli.leaves_with(2, said, "run", "worker", "Do it.", "--script", name)
    assert stored(cli) == []


def test_a_model_without_a_price_is_refused_with_its_budget_and_played_by_a_script(cli: Cli) -> None:
    cli.agent("worker", model="sonnet", limits={"budgetUsd": 1})
    done = cli("run", "worker", "Go.", "--model", "sonet")
    assert done.returncode == 1 and "the model 'sonet' (nearest: sonnet)" in done.stderr
    script = scripted(cli, says("Done."))
    assert cli("run", "worker", "Go.", "--model", "sonet", "--script", script).stdout == "Done.\n"
    shown = cli("show", "@last").stdout
    assert "\nmodel     sonet, played by a script\n" in shown and "\nfile      agents/worker.md\n" in shown
