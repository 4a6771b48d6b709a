"""The types of the values of options: what each takes, and the sentence about another value."""

import json
import math
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem


def text(value: str) -> str:
    """Return `value` if UTF-8 can encode it, as everything stored must be."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it holds bytes that are not UTF-8: give text.") from error
    return value


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in the argument of this name. Raises UsageError."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # or `loads` lets NaN pass
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{name} is no JSON ({error}): give an object.") from error
    if not isinstance(value, dict):
        raise click.UsageError(f'{name} is JSON and no object: give an object, such as {{"name": "value"}}.')
    return value


def seconds(value: str) -> float:
    """Return a finite number of seconds, at least 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise click.BadParameter(f"{value!r} is no number of seconds: give 0 or more.")
    return number


def _directory(value: str | Path) -> Path:
    """Return a path, at which nothing need be yet."""
    if not str(value):
        raise click.BadParameter("it is empty: give a path.")
    return Path(value)


def span(value: str) -> timedelta:
    """Return a time span such as `30d`."""
    found = _SPAN.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time span: give a number with s, m, h, d or w, as in 30d.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(\d{1,5})([smhdw])", re.ASCII)
T = TypeVar("T")


class _PathType(click.types.FuncParamType[str, T]):
    """A type whose values the shell completes as paths of files and directories."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class Count(click.IntRange):
    """A whole number within bounds; click's own refusal speaks of ranges."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter as error:
            bounds = f"{self.min} or more" if self.max is None else f"{self.min} to {self.max}"
            raise click.BadParameter(f"{str(value)!r} is no such number: give {bounds}.") from error


# The name of a function is the placeholder in the help.
TEXT = click.types.FuncParamType(text)
SECONDS = click.types.FuncParamType(seconds)
SPAN = click.types.FuncParamType(span)
DIRECTORY = _PathType(_directory)
PATH_TEXT = _PathType(text)
