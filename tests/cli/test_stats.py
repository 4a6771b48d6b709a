"""`subagent stats`: sums of runs by agent and day."""

from datetime import UTC, datetime, timedelta

from subagent_server.verbs.list_runs import stats
from tests.cli.command import Cli
from tests.helpers.state_files import counted_state_files
from tests.helpers.stored import AGENTS, make_stored

FIRST = datetime(2026, 5, 1, tzinfo=UTC)


def test_runs_are_summed_up_by_agent_and_day(cli: Cli) -> None:
    make_stored(cli.home / "runs", 40, first=FIRST, step=timedelta(hours=2))
    with cli.living("222222", agent_name="scout"):
        said = cli.json("stats")
        assert said["total"] | {"seconds": 0} == {
            "runs": 41,
            "completed": 28,
            "failed": 8,
            "stopped": 4,
            "active": 1,
            "seconds": 0,
            "inputTokens": 40 * 1000 + sum(range(40)),
            "outputTokens": 8000,
            "cacheReadTokens": 200_000,
            "cacheWriteTokens": 0,
        }
        assert {row["agent"]: row["runs"] for row in said["byAgent"]} == {
            **dict.fromkeys(AGENTS, 10),
            "scout": 11,
        }
        assert [row["day"] for row in said["byDay"]][:2] == ["2026-05-01", "2026-05-02"]
        assert said["byDay"][0]["runs"] == 12
        header, total, *rows = cli("stats").stdout.splitlines()
    assert header.split()[:3] == ["RUNS", "DONE", "FAILED"] and total.split()[:2] == ["all", "41"]
    assert [row.split()[0] for row in rows[:4]] == sorted(AGENTS)
    assert cli.json("stats", "--agent", "triage")["total"]["runs"] == 10
    assert cli.json("stats", "--since", "1d", "--agent", "triage")["total"]["runs"] == 0
    with counted_state_files() as count:
        assert stats(cli.store, since=FIRST + timedelta(hours=76)).total.runs == count.reads == 3


def test_an_empty_root_says_so_and_unreadable_runs_are_counted(cli: Cli) -> None:
    assert cli("stats").stdout == "" and cli.json("stats")["total"]["runs"] == 0
    broken = cli.completed("aaaaaa")
    cli.store.paths.run(broken).meta.path.write_bytes(b"{")
    assert cli.json("stats")["unreadable"] == 1
    assert "1 more cannot be read" in cli("stats").stderr
    with cli.living("bbbbbb", completed_at=FIRST):
        assert cli.json("stats")["total"]["active"] == 1, "the time of an end alone is none"
