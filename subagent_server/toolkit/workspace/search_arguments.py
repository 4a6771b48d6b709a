"""The arguments that `grep` and `glob` share, and their errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from subagent_server.domain.errors import BadArgument, shorten

PATH: dict[str, Any] = {
    "type": "string",
    "description": "Where to search: relative to the working directory (the default).",
}
INCLUDE_IGNORED: dict[str, Any] = {
    "type": "boolean",
    "description": "Also search what .gitignore, .ignore and .rgignore files name; false.",
}


def named(path: str | None) -> str:
    """Return the name of the searched directory or file for a sentence."""
    return "the working directory" if path in (None, "", ".") else str(path)


@contextmanager
def search_errors(path: str | None) -> Iterator[None]:
    """Turn an error of the system into a `BadArgument`.

    Raises:
        BadArgument: the system refused the search.
    """
    try:
        yield
    except OSError as error:
        raise BadArgument(
            f"{shorten(path or '.')} could not be searched ({error.strerror or error}): use another path."
        ) from error
