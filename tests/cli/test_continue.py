"""`subagent continue`: a new run carries on an ended one (see also tests/end_to_end/test_continuing.py)."""

from tests.cli.command import Cli, Model
from tests.extensions.flows.place import FAN
from tests.helpers.turns import says

FIRST, SECOND = says("First."), says("Second.")


def test_the_new_run_is_followed_and_has_its_own_prompt_and_options(cli: Cli, model: Model) -> None:
    simulator = model(FIRST, SECOND)
    first = cli.json("run", "worker", "Go.")["runId"]
    options = ["--model", "haiku", "--max-turns", "3", "--budget", "0.5", "--timeout", "60"]
    done = cli("continue", first, "-", *options, stdin="Go on.\n")
    assert (done.returncode, done.stdout) == (0, "Second.\n")
    second = cli.meta(cli.store.run_ids()[0])
    assert second.continues_run_id == first
    request = cli.store.read_request(second.run_id)
    assert request.prompt == "Go on." and request.agent["model"] == "haiku" and request.agent["limits"] != {}
    assert simulator.requests[-1].body["model"].startswith("claude-haiku")
    done = cli("continue", first, "Go on.", "--max-turns", "none")
    assert done.returncode == 2 and "--max-turns" in done.stderr and len(cli.store.run_ids()) == 2


def test_without_its_file_an_agent_is_taken_as_it_was_only_by_an_option(cli: Cli, model: Model) -> None:
    model(FIRST, SECOND)
    first = cli.json("run", "worker", "Go.")["runId"]
    (cli.home / "agents" / "worker.md").unlink()
    cli.leaves_with(2, "`--stored-agent`", "continue", first, "Go on.")
    assert cli("continue", first, "Go on.", "--stored-agent").stdout == "Second.\n"


def test_a_flow_starts_failed_calls_and_those_of_an_agent_anew_only_by_options(
    cli: Cli, model: Model
) -> None:
    simulator = model(says("Done.", fault={"status": 400}))
    (cli.home / "agents" / "fan.flow.py").write_text(FAN.replace("= 3", "= 1"), encoding="utf-8")
    cli.trust()
    assert cli("run", "fan").returncode == 1
    calls = []
    for options in ([], ["--retry-failed"], ["--fresh", "worker", "--dry-run"], ["--fresh", "worker"]):
        cli("continue", "@last", *options)
        calls.append(len(simulator.requests))
    assert calls == [1, 2, 2, 3]
    cli("continue", "@last", "--dry-run")
    cli.leaves_with(2, "is a dry run: rerun run", "rerun", "@last")
