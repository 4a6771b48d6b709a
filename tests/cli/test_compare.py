"""`subagent compare`: two runs side by side, on wide and narrow terminals, in pipes and as JSON."""

import json

from subagent_server.run.records import Failure
from subagent_server.run.transitions import RunFailed
from tests.cli.command import Cli, stored
from tests.helpers.turns import says, shell


def test_two_results_stand_side_by_side_where_there_is_room(
    cli: Cli,
) -> None:
    cli.agent("worker", model="haiku")
    script = {"turns": [shell("true"), says("The first says a long sentence with 漢字 in it. " * 3)]}
    (cli.home / "script.json").write_text(json.dumps(script), encoding="utf-8")
    assert cli("run", "worker", "Do it.", "--script", "script.json").returncode == 0
    cli.completed("zzzzzz", "The second is short.\x1b[31m")
    second, first = stored(cli)
    found = cli.json("compare", first, second)
    one, other = found["runs"]
    assert (one["turns"], one["tools"], one["toolCalls"]) == (2, {"bash": 1}, 1)
    assert one["inputTokens"] > 0 and one["scripted"] and "costUsd" not in one
    assert (other["turns"], other.get("model"), found["sameResult"]) == (0, None, False)
    wide = cli.on_screen("compare", first, second, columns=140).splitlines()
    assert any("The second is short.\\x1b[31m" in line for line in wide)
    rows = {line.split()[0]: line.split() for line in wide if line}
    assert rows["model"][-1] == rows["cost"][-1] == rows["cost"][-2] == "-"
    assert rows["bash"][1:] == ["1", "0"]
    narrow = cli.on_screen("compare", first, second, columns=60)
    assert all(len(line) <= 60 for line in narrow.split("Result of")[0].splitlines())
    for shown in (narrow, cli("compare", first, second).stdout):
        assert shown.index("The first says") < shown.index("The second is short.")


def test_the_same_result_is_shown_once(cli: Cli) -> None:
    runs = [cli.completed("aaaaaa", "Equal."), cli.completed("bbbbbb", "Equal.")]
    assert cli("compare", *runs).stdout.count("Equal.") == 1
    cli.leaves_with(3, "nope", "compare", runs[0], "nope")


def test_runs_without_a_result_have_not_the_same(cli: Cli) -> None:
    failures = [Failure(code=code, message=f"For {code}.") for code in ("timeout", "budget")]
    runs = [cli.made(f"{n}" * 6, RunFailed(failure=failure)) for n, failure in enumerate(failures, 2)]
    said = cli("compare", *runs).stdout
    assert "timeout: For timeout." in said and "budget: For budget." in said and "Both" not in said
    assert cli.json("compare", *runs)["sameResult"] is False
