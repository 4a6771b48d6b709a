"""A tree of three living runs for the command to show."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from subagent_server.run import transitions
from subagent_server.run.processes import now
from subagent_server.run.records import RunMeta, Usage
from tests.cli.command import Cli, asked


@dataclass(frozen=True)
class Family:
    """The ids of a run, its child and its grandchild."""

    boss: str
    helper: str
    tester: str


@contextmanager
def family(cli: Cli, question: str = "Which colour?") -> Iterator[Family]:
    """Make a living tree whose lowest run asks."""
    with cli.living("111111", agent_name="boss", label="the plan") as boss:
        below = {"root_run_id": boss, "agent_name": "helper"}
        with (
            cli.living("222222", parent_run_id=boss, depth=1, **below) as helper,
            cli.living(
                "333333",
                asked(question),
                parent_run_id=helper,
                depth=2,
                root_run_id=boss,
                agent_name="tester",
                prompt="Test the colours.\nAll of them.",
            ) as tester,
        ):
            yield Family(boss, helper, tester)


def pay(cli: Cli, run_id: str, usage: Usage) -> RunMeta:
    """Record the usage of a run."""
    return cli.store.update(run_id, transitions.UsageSettled(usage=usage), now())
