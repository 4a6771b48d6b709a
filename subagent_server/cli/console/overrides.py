"""The options that change an agent for one run: `run`, `rerun` and `continue`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from subagent_server.cli.console.flags import TEXT

_Verb = TypeVar("_Verb", bound=Callable[..., Any])

_OPTIONS = {
    "--model": ("model", "MODEL", "Its model: an alias (opus, sonnet, haiku) or an id."),
    "--effort": ("effort", "EFFORT", "How hard it thinks: low, medium, high, xhigh or max."),
    "--budget": ("budgetUsd", "USD", "What the run and all runs below may cost."),
    "--timeout": ("timeoutSeconds", "SECONDS", "How long it may work; waits for an answer do not count."),
    "--max-turns": ("maxTurns", "N", "How many turns it may take."),
}
"""By option: the key of the agent's file that it stands for, and its help."""
_KEPT = "subagent_server.overrides"


def override_options(verb: _Verb) -> _Verb:
    """Give a verb the options; `overrides` returns their values."""
    for option, (key, metavar, words) in reversed(_OPTIONS.items()):
        help_text = f"{words}  [default: as its file says]"
        verb = click.option(
            option,
            key,
            type=TEXT,
            metavar=metavar,
            help=help_text,
            expose_value=False,
            callback=_keep,
        )(verb)
    return verb


def overrides() -> dict[str, str]:
    """Return the keys of the agent's file that the options of this command give, with their values."""
    return dict(click.get_current_context().meta.get(_KEPT, {}))


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep the value of an option that was given. Raises BadParameter."""
    if value is None or param.name is None:
        return
    from subagent_server.catalog.overrides import fault_of  # the help does not read agent files

    if (fault := fault_of(param.name, value)) is not None:
        raise click.BadParameter(f"it {fault}.")
    ctx.meta.setdefault(_KEPT, {})[param.name] = value
