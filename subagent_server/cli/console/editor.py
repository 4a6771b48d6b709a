"""A text that the person writes in an editor of their own."""

import os

import click

from subagent_server.domain.errors import BadArgument


def has_editor() -> bool:
    """Whether the person has named an editor."""
    return bool(os.environ.get("VISUAL") or os.environ.get("EDITOR"))


def edited(text: str, what: str) -> str:
    """Return `text` after the person has edited it; `what` is its name in the sentence of a refusal.

    Raises:
        BadArgument: there is no editor, it failed, or nothing was left.
    """
    if not has_editor():
        raise BadArgument(f"The {what} cannot be edited, because no editor is named: set EDITOR.")
    try:
        written = click.edit(text, extension=".md", require_save=False)
    except click.ClickException as error:
        raise BadArgument(f"The {what} was not edited ({error.format_message()}): set EDITOR.") from error
    if written is None or not written.strip():
        raise BadArgument(f"The {what} is empty, so nothing was started: say what the agent shall do.")
    return written.rstrip("\r\n")
