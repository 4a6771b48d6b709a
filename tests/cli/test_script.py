"""`subagent script`: a run that has ended plays again, with the same turns and calls."""

import json
from typing import Any

import yaml

from tests.cli.command import Cli, asked, stored
from tests.extensions.flows.place import FAN
from tests.helpers.turns import call, says, shell

ODD = "Costs $${x} and ${HOME}.\nGr\u00f6\u00dfe \u202e and \x1b[31m yes"


def happened(cli: Cli, run_id: str) -> list[Any]:
    """Return what the model said and which tools it called, from the journal."""
    lines = cli.store.paths.run(run_id).events.path.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    wanted = ("thought", "text", "tool_call")
    keys = ("type", "text", "toolName", "arguments")
    return [{key: event.get(key) for key in keys} for event in events if event["type"] in wanted]


def test_a_run_and_the_runs_below_it_play_again_with_the_same_turns_and_calls(cli: Cli) -> None:
    cli.agent("worker")
    cli.agent("lead", agents=["worker"])
    below = [shell("printf '%s' \"$${HOME}\""), says("Below.")]
    script = {
        "conversations": [{"when": {"system": "subagent worker,"}, "turns": below}],
        "turns": [
            {"thinking": "I think.", **call("run_worker", prompt="Do (it)!", waitSeconds=60)},
            {"content": [{"text": "One."}, {"name": "bash", "input": {"command": "true"}}, {"text": "Two."}]},
            says(ODD.replace("$${", "$$${")),
        ],
    }
    (cli.home / "first.json").write_text(json.dumps(script), encoding="utf-8")
    assert cli("run", "lead", "Lead.", "--script", "first.json").returncode == 0
    lead, worker = stored(cli)
    done = cli("script", lead)
    assert done.returncode == 0 and "\u202e" not in done.stdout and "\x1b" not in done.stdout
    (cli.home / "again.yaml").write_text(done.stdout, encoding="utf-8")
    assert cli("run", "lead", "Lead anew.", "--script", "again.yaml").returncode == 0
    lead_again, worker_again = stored(cli)[2:]
    assert happened(cli, lead_again) == happened(cli, lead) != []
    assert happened(cli, worker_again) == happened(cli, worker) != []
    assert cli.json("script", lead) == yaml.safe_load(done.stdout)


def test_a_flow_plays_again_with_the_answers_of_its_agents(cli: Cli) -> None:
    cli.agent("worker")
    (cli.home / "agents" / "fan.flow.py").write_text(FAN.replace("= 3", "= 2"), encoding="utf-8")
    cli.trust()
    script = {"turns": [says("done ${n}", capture={"n": r"task (\w+)"})]}
    (cli.home / "first.json").write_text(json.dumps(script), encoding="utf-8")
    first = json.loads(cli("run", "fan", "--script", "first.json").stdout)
    made = cli("script", stored(cli)[0])
    assert made.returncode == 0, made.stderr
    (cli.home / "again.yaml").write_text(made.stdout, encoding="utf-8")
    assert json.loads(cli("run", "fan", "--script", "again.yaml").stdout) == first == ["done 0", "done 1"]


def test_a_run_that_has_not_ended_or_never_answered_is_no_script(cli: Cli) -> None:
    with cli.living("asking", asked()) as run_id:
        cli.leaves_with(2, "has not ended yet", "script", run_id)
    silent = cli.completed("silent")
    cli.leaves_with(2, "never answered", "script", silent)
    transcript = cli.store.paths.run(silent).transcript.path
    call_of_nothing = {"type": "tool_use", "name": "", "input": {}}
    planted = [{"role": "assistant", "content": [{"type": 3}, "x", call_of_nothing]}, {"role": 7}]
    transcript.write_text("".join(f"{json.dumps(line)}\n" for line in planted), encoding="utf-8")
    done = cli("script", silent)
    assert done.returncode == 1 and "no script can play" in done.stderr and done.stderr.count("\n") == 1
