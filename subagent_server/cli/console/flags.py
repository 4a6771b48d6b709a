"""The flags that every verb takes, before or after its name, and the types of option values."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click


@dataclass
class Flags:
    """The values of the flags that every verb takes. One after the verb overrides the same one before it."""

    agents: tuple[Path, ...] = ()
    runs: Path | None = None
    max_runs: int | None = None
    trust: bool = False
    debug: bool = False
    as_json: bool = False
    """Whether --json is among the words: known before they are parsed, for what is wrong with them."""


def _text(value: str) -> str:
    """Return `value` if UTF-8 can encode it, as everything stored must be."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it holds bytes that are not UTF-8: give text.") from error
    return value


def _seconds(value: str) -> float:
    """Return a finite number of seconds, at least 0."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise click.BadParameter(f"{value!r} is no number of seconds: give 0 or more.")
    return seconds


def _directory(value: str | Path) -> Path:
    """Return the path of a directory, which need not exist yet."""
    if not str(value):
        raise click.BadParameter("it is empty: name a directory.")
    return Path(value)


def _span(value: str) -> timedelta:
    """Return a time span such as `30d`."""
    found = _SPAN.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time span: give a number with s, m, h, d or w, as in 30d.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(\d{1,5})([smhdw])", re.ASCII)

TEXT = click.types.FuncParamType(_text)
SECONDS = click.types.FuncParamType(_seconds)
SPAN = click.types.FuncParamType(_span)
DIRECTORY = click.types.FuncParamType(_directory)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def common_options() -> list[click.Option]:
    """Return the options that every verb takes. Their values go into the context's `Flags`."""
    return [
        click.Option(
            ["--agents"],
            type=DIRECTORY,
            multiple=True,
            metavar="DIR",
            help="Where agent files are; may be repeated, the earlier wins.  "
            "[default: $SUBAGENT_AGENTS, else ./agents and ./.claude/agents]",
            **_KEPT,
        ),
        click.Option(
            ["--runs"],
            type=DIRECTORY,
            metavar="DIR",
            help="Where runs are kept.  [default: $SUBAGENT_RUNS, else the nearest runs/ upwards]",
            **_KEPT,
        ),
        click.Option(
            ["--max-runs"],
            type=click.IntRange(min=1),
            metavar="N",
            help="How many runs work at once; more wait.  [default: $SUBAGENT_MAX_RUNS, else 64]",
            **_KEPT,
        ),
        click.Option(
            ["--debug"], is_flag=True, help="Show where in the program an error comes from.", **_KEPT
        ),
    ]


def take_common_options(command: click.Command) -> None:
    """Let a verb take the common options that it has no own meaning for; its help names them in a line."""
    own = {option for param in command.params for option in param.opts}
    common = [option for option in common_options() if own.isdisjoint(option.opts)]
    for option in common:
        option.hidden = True
    if not common:  # it has them since an earlier call
        return
    command.params += common
    names = ", ".join(name for option in common for name in option.opts)
    command.epilog = f"Every verb takes {names} too: see `subagent --help`."


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name:
        setattr(ctx.ensure_object(Flags), param.name, value)


_KEPT: dict[str, Any] = {"expose_value": False, "callback": _keep}

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Use the agents and MCP servers that come with this directory, for this command.",
    **_KEPT,
)
