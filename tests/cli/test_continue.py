"""`subagent continue`: a new run carries on an ended one (see also tests/end_to_end/test_continuing.py)."""

from tests.cli.command import Cli, Model
from tests.helpers.turns import says

FIRST, SECOND = says("First."), says("Second.")


def test_the_new_run_is_followed_and_names_the_run_that_it_continues(cli: Cli, model: Model) -> None:
    model(FIRST, SECOND)
    first = cli.json("run", "worker", "Go.")["runId"]
    done = cli("continue", first, "-", stdin="Go on.\n")
    assert (done.returncode, done.stdout) == (0, "Second.\n")
    second = cli.meta(cli.store.run_ids()[0])
    assert second.continues_run_id == first
    assert cli.store.read_request(second.run_id).prompt == "Go on."


def test_options_change_the_agent_for_the_new_run_alone(cli: Cli, model: Model) -> None:
    simulator = model(FIRST, SECOND)
    first = cli.json("run", "worker", "Go.")["runId"]
    options = ["--model", "haiku", "--max-turns", "3", "--budget", "0.5", "--timeout", "60"]
    assert cli("continue", first, "Go on.", *options).stdout == "Second.\n"
    agent = cli.store.read_request(cli.store.run_ids()[0]).agent
    assert agent["model"] == "haiku" and agent["limits"] != {}
    assert simulator.requests[-1].body["model"].startswith("claude-haiku")
    done = cli("continue", first, "Go on.", "--max-turns", "none")
    assert done.returncode == 2 and "--max-turns" in done.stderr and len(cli.store.run_ids()) == 2
