"""What the shell completes: names of agents, and runs by the short ids that lists show."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import click
from click.shell_completion import CompletionItem

from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import cut, one_line
from subagent_server.domain.errors import SubagentError

_MOST = 50
_WIDTH = 60


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs whose short or whole id begins so, those that need a person first."""
    from subagent_server.service.list_runs import RunList
    from subagent_server.store.runs import RunStore

    session = Session(ctx.ensure_object(Flags))

    def found() -> Iterator[CompletionItem]:
        rows = RunList(RunStore(session.settings.runs_root), caller=session.caller).every()
        for row in islice(rows, _MOST):
            about = cut(one_line(" · ".join(filter(None, (row.agent, row.label or row.summary)))), _WIDTH)
            for name in (row.run_id.rpartition("-")[2], row.run_id):
                if name.startswith(incomplete):
                    yield CompletionItem(name, help=about)
                    break

    return _quietly(found())


def complete_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the agents whose name begins so. Names that a shell would take apart are left out."""
    session = Session(ctx.ensure_object(Flags))

    def found() -> Iterator[CompletionItem]:
        for agent in session.service.registry.agents():
            if agent.name.startswith(incomplete) and not set(agent.name) & set(" \t\n'\"`$\\;&|<>()*?[]{}!"):
                yield CompletionItem(agent.name, help=cut(one_line(agent.description), _WIDTH))

    return _quietly(found())


def _quietly(items: Iterable[CompletionItem]) -> list[CompletionItem]:
    """Return what can be completed; where nothing can be read, nothing is."""
    kept: list[CompletionItem] = []
    with suppress(SubagentError, OSError):
        kept.extend(items)
    return kept
