"""`subagent stats`: sum up runs, tokens and cost."""

from collections.abc import Iterable
from datetime import timedelta

import click

from subagent_server.cli.console.app import Session, complete_agents, json_session
from subagent_server.cli.console.option_types import SPAN, TEXT
from subagent_server.cli.console.terminal import duration, err, one_line, out, out_json, table, tokens_cell
from subagent_server.run.processes import now
from subagent_server.run.states import least_mark
from subagent_server.run.store import RunStore
from subagent_server.verbs import list_runs as service
from subagent_server.verbs.list_runs import Stats, Sum

DAYS = 14
_HEADER = ("RUNS", "DONE", "FAILED", "STOPPED", "ACTIVE", "TOKENS", "COST", "TIME")
_LIMITS = (24, 9, 9, 9, 9, 9, 14, 12)


@click.command()
@click.option("--since", type=SPAN, help="Only runs begun so long ago at most: 12h, 7d, 8w.")
@click.option(
    "--agent", type=TEXT, metavar="NAME", shell_complete=complete_agents, help="Only runs of this agent."
)
@json_session
def stats(session: Session, since: timedelta | None, agent: str | None) -> None:
    """Sum up runs: how they ended, what they used, by agent and by day (UTC, the last 14 that had any).

    Tokens are those of every kind, as the states say; time is from being accepted to the end. A sum with ≥
    is at least so much, because a run did not report all. With --json: every day, and each kind of tokens.
    """
    session.check_is_user()
    begin = None if since is None else now() - since
    found = service.stats(RunStore(session.settings.runs_root), since=begin, agent=agent)
    if session.as_json:
        out_json(found.to_wire())
    elif found.total.runs:
        out("\n".join(table(list(_rows(found)), _LIMITS)))
    else:
        err(f"No runs to sum up in {session.settings.runs_root}.")
    if found.unreadable and not session.as_json:
        err(f"{found.unreadable} more cannot be read: `{session.command('doctor', '--runs')}` names them.")


def _rows(found: Stats) -> Iterable[tuple[str, ...]]:
    yield ("", *_HEADER)
    yield _row("all", found.total)
    yield from (_row(one_line(agent), found.by_agent[agent]) for agent in sorted(found.by_agent))
    yield from (_row(day, found.by_day[day]) for day in sorted(found.by_day, reverse=True)[:DAYS])


def _row(name: str, one: Sum) -> tuple[str, ...]:
    counts = (one.runs, *one.outcomes.values(), one.active)
    usage = one.usage
    cost = "" if usage.cost_usd is None else f"{least_mark(usage.at_least, 'costUsd')}${usage.cost_usd:.2f}"
    return (name, *(f"{count:,}" for count in counts), tokens_cell(usage), cost, duration(one.seconds))
