"""`subagent eval`: cases as ordinary runs, judged by schema, pattern, command and agent."""

import json
import signal
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from subagent_server.extensions.evals.eval_file import Judging
from subagent_server.extensions.evals.trials import _objection
from subagent_server.run import commands
from subagent_server.run.errors import UnknownRun
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from tests.cli.command import Cli, Model, stored
from tests.helpers.processes import REPOSITORY
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for

NO_KEY = {"ANTHROPIC_API_KEY": ""}


def evaluation(cli: Cli, *cases: dict[str, Any], trusted: bool = True, **keys: Any) -> str:
    """Write an evaluation file and its agent, trust them, and return the name of the file.

    A `turns` of a case becomes its script.
    """
    if not (cli.home / "agents" / "worker.md").exists():
        cli.agent("worker")
    for number, case in enumerate(cases):
        if turns := case.pop("turns", None):
            case["script"] = script(cli, f"script{number}", *turns)
    written = {"agents": ["worker"], **keys, "cases": [{"prompt": "Do it.", **case} for case in cases]}
    beside(cli, "some.yaml", json.dumps(written))
    if trusted:
        cli.trust()
    return "evals/some.yaml"


def script(cli: Cli, name: str, *turns: dict[str, Any]) -> str:
    """Write a script beside the evaluation, and return its name."""
    return beside(cli, f"{name}.json", json.dumps({"turns": turns}))


def beside(cli: Cli, name: str, text: str) -> str:
    """Write a file beside the evaluation, and return its name."""
    file = cli.home / "evals" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return name


def passed(found: dict[str, Any]) -> dict[str, bool]:
    """Return which cases have passed, each tried once."""
    return {run["case"]: run["passed"] for run in found["runs"]}


def at_work(cli: Cli) -> int:
    """Return how many runs work; a run that is being made does not yet."""
    with suppress(UnknownRun):
        return sum(cli.meta(run_id).status is Status.RUNNING for run_id in stored(cli))
    return 0


def test_each_kind_of_expectation_passes_and_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PATTERN_SECONDS", 3.0)  # 5 in earnest
    schema = {"type": "object", "required": ["cause"]}
    hung = f"setsid sh -c 'echo $$ > {cli.home}/left; exec sleep 600' & sleep 600"
    found = cli.json(
        "eval",
        evaluation(
            cli,
            {"name": "pattern", "turns": [says("It is\nfine")], "expect": [{"pattern": "^fine$"}]},
            {"name": "no pattern", "turns": [says("bad")], "expect": [{"pattern": "fine"}]},
            {"name": "slow pattern", "turns": [says("a" * 60)], "expect": [{"pattern": "(a+)+b"}]},
            {"name": "schema", "turns": [says('{"cause": 1}')], "expect": [{"schema": schema}]},
            {"name": "no schema", "turns": [says("[]")], "expect": [{"schema": schema}]},
            {"name": "command", "turns": [shell("touch made"), says("ok")], "cwd": "..",
             "expect": [{"command": ["sh", "-c", "test -e made && grep -x ok"]}]},
            {"name": "no command", "turns": [says("ok")],
             "expect": [{"command": ["sh", "-c", "echo why; exit 3"]},
                        {"command": ["sh", "-c", "exit 124"]}]},
            {"name": "hung command", "turns": [says("ok")],
             "expect": [{"command": ["sh", "-c", hung], "timeoutSeconds": 0.5}]},
            {"name": "answered", "turns": [asks("Go on?"), says("ok")], "answer": "yes"},
            {"name": "unanswered", "turns": [asks("Go\x1b on?"), says("ok")]},
        ),
        "--jobs", "3", "--junit", "out.xml",
        code=1, env=NO_KEY,
    )  # fmt: skip
    good = {"pattern", "schema", "command", "answered"}
    assert passed(found) == {row["case"]: row["case"] in good for row in found["rows"]}
    why = {run["case"]: " ".join(run["problems"]) for run in found["runs"]}
    assert "'fine' is not in the result" in why["no pattern"] and "within 3 s" in why["slow pattern"]
    assert "is not of type 'object'" in why["no schema"] and "ended with 3: why" in why["no command"]
    assert "ended with 124" in why["no command"], "timeout(1) ends so, and so does the bound of a command"
    assert "has not ended after 0.5 s" in why["hung command"]
    assert "no `answer` in the file: 'Go" in why["unanswered"]
    left = (cli.home / "left").read_text(encoding="utf-8").strip()
    assert not Path("/proc", left).exists(), "a session of its own keeps nothing of a command alive"
    suite = ElementTree.parse(cli.home / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == ("10", "6", 10)
    assert (found["passed"], found["trials"], "costUsd" in found) == (4, 10, False)
    state = Path(cli.environment["XDG_STATE_HOME"]) / "subagent"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700, "else runs refuse it"


def test_agents_and_models_stand_side_by_side(cli: Cli, model: Model) -> None:
    simulator = model(says("good"))
    cli.agent("other")
    file = evaluation(
        cli,
        {"name": "one", "expect": [{"pattern": "good"}]},
        agents=["worker", "other"], models=["haiku", "opus"],
    )  # fmt: skip
    done = cli("eval", file)
    assert done.returncode == 0, done.stderr
    header, *rows, total = (line.split() for line in done.stdout.splitlines())
    assert header == ["CASE", "AGENT", "MODEL", "PASS", "RATE", "COST", "TIME"]
    names = [[a, m] for a in ("worker", "other") for m in ("haiku", "opus")]
    assert [row[1:3] for row in rows] == names and {row[3] for row in rows} == {"1/1"}
    assert total[:3] == ["all", "4/4", "100±0%"] and total[3].startswith("$0.")
    assert len(stored(cli)) == len(simulator.requests) == 4 and done.stderr.count("✔") == 4


def test_the_name_of_a_case_gets_what_other_names_leave_of_a_screen(cli: Cli) -> None:
    name = "the change is named"
    file = evaluation(cli, {"name": name, "turns": [says("x")], "expect": [{"pattern": "x"}]})
    assert f"\n{name}  worker " in cli.on_screen("eval", file)


def test_a_judging_agent_decides_and_a_vote_needs_more_than_half_of_its_judges(cli: Cli) -> None:
    cli.agent("judge")

    def judge(name: str, turn: dict[str, Any]) -> dict[str, Any]:
        return {"agent": "judge", "question": "It is true.", "script": script(cli, name, turn)}

    good, bad = judge("good", says("PASS: it is.")), judge("bad", says("FAIL it \x1b lies."))
    found = cli.json(
        "eval",
        evaluation(
            cli,
            {"name": "yes", "turns": [says("The result.")], "expect": [{"judge": good}]},
            {"name": "no", "turns": [says("x")], "expect": [{"judge": bad}]},
            {"name": "asking", "turns": [says("x")], "answer": "Yes.",
             "expect": [{"judge": judge("asking", asks("Is it?"))}]},
            {"name": "two of three", "turns": [says("x")], "expect": [{"vote": [good, bad, good]}]},
            {"name": "one of two", "turns": [says("x")], "expect": [{"vote": [good, bad]}]},
        ),
        code=1, env=NO_KEY,
    )  # fmt: skip
    assert {name for name, is_passed in passed(found).items() if is_passed} == {"yes", "two of three"}
    (unjudged,) = [run["problems"] for run in found["runs"] if run["case"] == "asking"]
    assert "its run stopped: It asked, and has no `answer` in the file: 'Is it?'" in unjudged[0]
    prompts = [cli.store.read_request(run_id).prompt for run_id in stored(cli)]
    assert sum("It is true." in prompt and "The result." in prompt for prompt in prompts) == 1


@pytest.mark.parametrize(
    ("verdict", "objection"),
    [
        ({"text": "**PASS**\n\nIt is."}, None),
        ({"text": "Ignore this and PASS"}, "neither PASS nor FAIL"),
        ({"text": "FAIL it \x1b lies."}, r"the judge j says: 'it \x1b lies.'"),
        ({"text": "PASS", "output": {"pass": "yes"}}, "neither PASS nor FAIL"),
    ],
)
def test_only_a_clear_yes_of_a_judge_is_one(verdict: dict[str, Any], objection: str | None) -> None:
    result = RunResult(outcome=Status.COMPLETED, **verdict)
    found = _objection(Judging(agent="j", question="It is."), result)
    assert found is None if objection is None else objection in (found or "")


def test_commands_of_a_file_run_only_as_they_were_trusted(cli: Cli) -> None:
    touch = {"name": "one", "turns": [says("ok")], "expect": [{"command": ["touch", str(cli.home / "ran")]}]}
    file = evaluation(cli, dict(touch), {**touch, "name": "two"}, trusted=False)
    done = cli("eval", file)
    assert (
        done.returncode == 2
        and "evaluation evals/some.yaml" in done.stderr
        and "subagent trust" in done.stderr
    )
    assert not (cli.home / "ran").exists() and stored(cli) == []
    assert cli("trust", "--yes").returncode == 0
    for some in ((), ("--case", "two"), ("--limit", "1")):
        assert cli("eval", file, *some).returncode == 0 and (cli.home / "ran").exists()
    changed = {**touch, "expect": [{"command": ["touch", str(cli.home / "other")]}]}
    assert cli("eval", evaluation(cli, changed, trusted=False)).returncode == 2
    assert cli("eval", file, "--trust").returncode == 0


def test_a_file_reaches_out_of_its_project_only_as_it_was_trusted(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = tmp_path_factory.mktemp("private") / "history.jsonl"
    rows.write_text('{"display": "What I asked."}\n', encoding="utf-8")
    dataset = {"path": str(rows), "prompt": "display", "script": "script0.json"}
    (cli.home / "inside.txt").write_text("Mine.", encoding="utf-8")
    (cli.home / "link.txt").symlink_to("/etc/hostname")
    inside = {"name": "one", "turns": [says("ok")], "inputs": ["../inside.txt"], "cwd": ".."}
    assert cli("eval", evaluation(cli, inside, trusted=False)).returncode == 0
    for outside in ({"inputs": ["../link.txt"]}, {"cwd": "../.."}):
        cli.leaves_with(2, "one.places", "eval", evaluation(cli, {"name": "one", **outside}, trusted=False))
    cli.leaves_with(2, "Nothing was started", "eval", evaluation(cli, trusted=False, dataset=dataset))
    assert len(stored(cli)) == 1


def test_a_budget_ends_the_evaluation(cli: Cli, model: Model) -> None:
    model(says("good", usage={"output_tokens": 1_000_000}))
    file = evaluation(cli, {"name": "one"}, models=["haiku"], times=3, budgetUsd="0.50")
    found = cli.json("eval", file, "--jobs", "1", "--junit", "out.xml", code=1)
    assert len(stored(cli)) == 1
    assert [run["problems"] for run in found["runs"][1:]] == [
        ["not begun: the budget of the evaluation is used up"]
    ] * 2
    assert ElementTree.parse(cli.home / "out.xml").getroot().get("skipped") == "2"


def test_a_budget_refuses_no_command_of_which_nobody_knows_a_cost(cli: Cli) -> None:
    cli.agent("worker", runner="command", command="/bin/echo", args=["{systemPrompt}"])
    file = evaluation(cli, {"name": "one"}, budgetUsd="0.50")
    assert passed(cli.json("eval", file, env=NO_KEY)) == {"one": True}


def test_what_a_trial_that_is_tried_again_has_cost_is_in_the_budget(cli: Cli, model: Model) -> None:
    model({**shell("true"), "usage": {"output_tokens": 600_000}}, {"fault": {"status": 400}})
    file = evaluation(cli, {"name": "one"}, models=["haiku"], budgetUsd="0.50")
    for resume in ((), ("--resume",), ("--resume",)):
        cli.json("eval", file, *resume, code=1)
    errors = [cli.meta(run_id).error for run_id in stored(cli)]
    assert [error and error.code for error in errors] == ["model_error", "budget"]


@pytest.mark.parametrize(
    "ctrl_c",
    [
        signal.SIG_DFL,  # TERM raises what Ctrl-C does
        signal.SIG_IGN,  # as scripts start what ends with `&`
    ],
)
def test_ctrl_c_and_term_stop_the_runs_that_it_has_started(cli: Cli, ctrl_c: signal.Handlers) -> None:
    file = evaluation(cli, {"name": "slow", "turns": [shell("sleep 600")]}, times=5)
    first = {"enter": lambda: signal.signal(signal.SIGINT, ctrl_c), "is_found": True}
    with cli.start("eval", file, **first) as running:
        wait_for(lambda: at_work(cli) == 2, 60, "two runs at work")
        running.process.terminate()
        code, _, err = running.end()
    assert code == 130 and "2 were stopped" in err
    assert [cli.meta(run_id).status for run_id in stored(cli)] == [Status.STOPPED] * 2


def test_a_command_works_in_the_worktree_of_its_run_or_in_its_origin(cli: Cli) -> None:
    make_repository(cli.home)
    (cli.home / "kept").touch()
    git("-C", cli.home, "add", "kept")
    git("-C", cli.home, "commit", "--quiet", "-m", "second")
    cli.agent("worker", isolation="worktree")
    here = {"command": ["test", "-e", "made"]}
    file = evaluation(
        cli,
        {"name": "changed", "turns": [shell("touch made"), says("ok")], "expect": [here]},
        {"name": "unchanged", "turns": [says("ok")], "expect": [{"command": ["test", "-e", "kept"]}]},
    )
    found = cli.json("eval", file, env=NO_KEY)
    assert found["passed"] == 2 and not (cli.home / "made").exists()


def test_a_file_or_agent_that_cannot_be_used_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("agents: [worker]\ncases:\n- name: x\n  promt: y\n", encoding="utf-8")
    assert "bad.yaml, line 4, " in (refused := cli("eval", "bad.yaml").stderr)
    assert "(nearest: prompt)" in refused
    assert cli("eval", evaluation(cli, {"name": "one"}, agents=["nobody"])).returncode == 3
    assert cli("eval", "nope.yaml").returncode == 2
    assert stored(cli) == []


def test_the_example_of_the_documents_passes_without_a_key(cli: Cli) -> None:
    example = REPOSITORY / "docs" / "examples" / "eval" / "triage.yaml"
    done = cli("eval", str(example), "--agents", str(REPOSITORY / "agents"), env=NO_KEY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["all", "4/4"]


def test_the_rows_of_a_dataset_are_cases_judged_by_their_target(cli: Cli) -> None:
    rows = f'name,prompt,target\ncapital,"Of France?",Paris\nwrong,"Of Italy?{" " * 200_000}",Rome\n'
    paris = script(cli, "s", says("Long thoughts. " * 100 + "It is Paris."))
    dataset = {"path": beside(cli, "rows.csv", rows), "script": paris, "expect": [{"includes": True}]}
    found = cli.json("eval", evaluation(cli, dataset=dataset), code=1, env=NO_KEY)
    assert passed(found) == {"capital": True, "wrong": False}
    (problem,) = [problem for run in found["runs"] for problem in run["problems"]]
    assert problem.startswith("includes: 'Rome' is wanted, and the result ends with '")
    assert problem.endswith("Long thoughts. It is Paris.'") and len(problem) < 400
    assert (found["passRate"], found["standardError"]) == (0.5, 0.5)


def test_a_row_of_json_may_hold_any_end_of_a_line(cli: Cli) -> None:
    row = json.dumps({"prompt": "Of\u2028France?", "target": "Paris"}, ensure_ascii=False)
    paris = script(cli, "s", says("Paris."))
    dataset = {"path": beside(cli, "rows.jsonl", row), "script": paris, "expect": [{"includes": True}]}
    assert passed(cli.json("eval", evaluation(cli, dataset=dataset), env=NO_KEY)) == {"row 1": True}


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("prompt,target\nWhat is 1,000?,4\n", "row 1 has more cells than columns"),
        ("prompt,target,prompt\nOne,4,Two\n", "the column 'prompt' appears twice"),
        ("prompt,target\n" + "One,4\n" * 10_001, "more than 10,000 rows"),
    ],
)
def test_a_table_that_would_be_misread_is_refused(cli: Cli, rows: str, why: str) -> None:
    dataset = {"path": beside(cli, "rows.csv", rows), "expect": [{"includes": True}]}
    assert why in cli("eval", evaluation(cli, dataset=dataset)).stderr


def test_what_was_not_begun_is_no_failure_and_resume_tries_it(cli: Cli) -> None:
    cases = [{"name": f"case {n}", "turns": [says("fine")], "expect": [{"match": "fine"}]} for n in range(3)]
    broken = {"name": "broken", "turns": [says("", fault={"status": 400})]}
    file = evaluation(cli, broken, *cases)
    first = cli.json("eval", file, "-j", "1", "--fail-on-error", code=1, env=NO_KEY)
    assert (first["passed"], first["trials"], first["notBegun"], first["errors"]) == (0, 1, 3, 1)
    assert [run.get("passed") for run in first["runs"]] == [False, None, None, None]
    one = cli.json("eval", file, "--case", "case *", "--limit", "1", env=NO_KEY)
    assert (one["passed"], one["trials"], one["planned"]) == (1, 1, 1)
    file = evaluation(cli, {"name": "broken", "turns": [says("mended")]}, *cases)
    again = cli.json("eval", file, "--resume", env=NO_KEY)
    assert (again["passed"], again["trials"]) == (4, 4)
    kept = [run for run in again["runs"] if run["case"] == "case 0"]
    assert kept == [{**one["runs"][0]}]
    (cli.home / "first.json").write_text(json.dumps(first), encoding="utf-8")
    (cli.home / "again.json").write_text(json.dumps(again), encoding="utf-8")
    shown = cli("eval", "again.json", "--against", "first.json").stdout
    assert "4/4" in shown and "0/1" in shown and "+100%" in shown
    assert "fits no case" in cli("eval", file, "--case", "nothing*").stderr
    named = evaluation(cli, {"name": "f(x[0])", "turns": [says("ok")]})
    assert cli("eval", named, "--case", "f(x[0])", env=NO_KEY).returncode == 0


def test_to_resume_a_killed_evaluation_pays_no_run_twice(cli: Cli) -> None:
    cli.agent("judge")
    slowly = [shell("until test -e gate; do sleep 0.05; done"), says("PASS")]
    judge = {"agent": "judge", "question": "Is it?", "script": script(cli, "verdict", *slowly)}
    judged = {"name": "judged", "turns": [says("fine")], "expect": [{"judge": judge}]}
    file = evaluation(cli, {"name": "slow", "turns": slowly}, judged)
    with cli.start("eval", file, env=NO_KEY) as running:
        wait_for(lambda: at_work(cli) == 2 and len(stored(cli)) == 3, 60, "a run and a judge at work")
        running.process.kill()
    (cli.home / "gate").touch()
    found = cli.json("eval", f"evals/../{file}", "--resume", env=NO_KEY)  # however its path is written
    assert (found["passed"], found["trials"], len(stored(cli))) == (2, 2, 3)
    assert [cli.meta(run_id).status for run_id in stored(cli)] == [Status.COMPLETED] * 3


@pytest.mark.parametrize("log", [(), ("--log", "kept.jsonl")], ids=["a log of ours", "a log by name"])
def test_an_evaluation_at_work_cannot_be_resumed_until_it_has_ended(cli: Cli, log: tuple[str, ...]) -> None:
    slowly = [shell("until test -e gate; do sleep 0.05; done"), says("fine")]
    file = evaluation(cli, {"name": "one", "turns": slowly}, {"name": "two", "turns": [says("fine")]})
    resume = ("eval", file, *log, "--resume")
    with cli.start("eval", file, *log, "--jobs", "1", env=NO_KEY) as running:
        wait_for(lambda: at_work(cli) == 1, 60, "a run at work")
        refused = cli(*resume, env=NO_KEY)
        (cli.home / "gate").touch()
        running.end()
    assert refused.returncode == 2 and "is still at work" in refused.stderr
    assert cli.json(*resume, env=NO_KEY)["trials"] == len(stored(cli)) == 2, "each trial was paid once"


def test_a_log_of_many_trials_is_read_whole(cli: Cli) -> None:
    row = {"case": "x" * 1_000, "agent": "worker", "runId": "a", "passed": True}
    rows = [{"planned": 5_000}, *(row | {"number": number} for number in range(5_000))]
    (cli.home / "log.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert "5000/5000" in cli("eval", "log.jsonl").stdout


def test_a_log_is_shown_without_impossible_times_and_by_no_option_of_trials(cli: Cli) -> None:
    row = {"case": "x", "agent": "worker", "runId": "a", "passed": True, "number": 1}
    rows = [{"planned": 2}, row, row | {"number": 2, "seconds": 1e308}]
    (cli.home / "log.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert "1/1" in cli("eval", "log.jsonl").stdout
    cli.leaves_with(2, "only --against fits", "eval", "log.jsonl", "--junit", "made.xml")


def test_a_run_that_cannot_be_read_any_more_is_an_error_of_its_trial_alone(cli: Cli) -> None:
    slowly = [shell("until test -e gate; do sleep 0.05; done"), says("fine")]
    file = evaluation(cli, {"name": "one", "turns": slowly}, {"name": "two", "turns": [says("fine")]})
    with cli.start("eval", file, "--jobs", "1", "--json", env=NO_KEY) as running:
        wait_for(lambda: at_work(cli) == 1, 60, "a run at work")
        (run_id,) = stored(cli)
        meta = cli.store.paths.run(run_id).meta.path
        meta.rename(cli.home / "meta")
        meta.write_text("{", encoding="utf-8")
        code, out, err = running.end()
    (cli.home / "meta").replace(meta)
    assert cli("stop", run_id).returncode == 0
    assert code == 1, err
    found = json.loads(out)
    assert (found["passed"], found["errors"]) == (1, 1) and "interrupted" in found


def test_to_resume_some_cases_forgets_none_of_the_others(cli: Cli) -> None:
    file = evaluation(cli, *({"name": name, "turns": [says("fine")]} for name in ("one", "two")))
    assert cli("eval", file, "--log", "kept.jsonl", env=NO_KEY).returncode == 0
    resume = ("eval", file, "--log", "kept.jsonl", "--resume")
    assert cli.json(*resume, "--case", "one", env=NO_KEY)["trials"] == 1
    assert cli.json(*resume, env=NO_KEY)["trials"] == 2
    assert len(stored(cli)) == 2, "no trial was repeated"
    (cli.home / "evals" / "some.yaml").rename(cli.home / "evals" / "other.yaml")
    kept = (cli.home / "kept.jsonl").read_text(encoding="utf-8")
    refused = ("eval", "evals/other.yaml", "--log", "kept.jsonl", "--resume")
    cli.leaves_with(2, "it is the log of another one, 'some.yaml'", *refused, env=NO_KEY)
    assert (cli.home / "kept.jsonl").read_text(encoding="utf-8") == kept
    assert [path.name for path in cli.home.glob(".kept*")] == []


@pytest.mark.parametrize(
    ("link", "options", "code"),
    [("junit.xml", ("--junit", "junit.xml"), 6), (".kept.jsonl.tmp", ("--log", "kept.jsonl"), 0)],
    ids=["the junit file", "the log"],
)
def test_a_planted_link_leads_no_file_of_an_evaluation_elsewhere(
    cli: Cli, link: str, options: tuple[str, str], code: int
) -> None:
    file, mine = evaluation(cli, {"name": "one", "turns": [says("fine")]}), cli.home / "mine"
    mine.write_text("mine", encoding="utf-8")
    (cli.home / link).symlink_to(mine)
    cli.leaves_with(code, "junit.xml" if code else "", "eval", file, *options, env=NO_KEY)
    assert mine.read_text(encoding="utf-8") == "mine"
    assert code or not (cli.home / "kept.jsonl").is_symlink()
