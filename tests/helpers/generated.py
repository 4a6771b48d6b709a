"""The documents that are made from the code: `make docs` writes them, a test compares them.

`python -m tests.helpers.generated` writes all of them into the repository.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from subagent_server.cli.console.app import common_options, groups, subagent
from subagent_server.cli.console.terminal import EXIT_CODES
from tests.helpers.diagram import diagram_section
from tests.helpers.processes import REPOSITORY

DOCS = REPOSITORY / "docs"
BEGIN, END = "<!-- life of a run -->\n", "<!-- end -->"

_HEAD = """# The command line

<!-- Made from the code: change the texts there, then run `make docs`. -->

Every verb with every option. [terminal.md](terminal.md) shows them at work.

RUN is the id of a run, a unique beginning of it, its unique last part (which lists show, such as `95j2gs`),
or `@last`, the last run that no other run started.
"""
_DEFAULT = re.compile(r"\s*\[default: (.*?)\]", re.S)


def command_page() -> str:
    """Return docs/cli.md: every verb with its arguments and options, as `--help` has them."""
    context = click.Context(subagent, info_name="subagent", **subagent.context_settings)
    parts = [_HEAD, "## Options of every verb\n", _options(common_options(), context), "## Exit codes\n"]
    parts.append("| code | meaning |\n|---|---|")
    parts += [f"| {code.value} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts.append("")
    for title, group in groups().items():
        parts.append(f"## {title}\n")
        for name in group:
            command = subagent.get_command(context, name)
            assert command is not None
            parts += _verb(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(parts)


def _verb(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the section of a verb, and of the verbs below it."""
    yield f"### `{context.command_path}`\n"
    words = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"    {words}\n"
    yield f"{_prose(command.help or '')}\n"
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield _options(options, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _verb(below, click.Context(below, info_name=name, parent=context))


def _options(options: list[click.Option], context: click.Context) -> str:
    """Return the table of options: how each is written, what it does, and what it is without it."""
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for option in options:
        record = option.get_help_record(context)
        assert record is not None, option.name
        spelled, help_text = record
        found = _DEFAULT.search(help_text)
        default = found[1] if found else ""
        meaning = _DEFAULT.sub("", help_text)
        spelled = spelled.replace("|", "\\|")
        lines.append(f"| `{spelled}` | {_cell(meaning)} | {_cell(default)} |")
    return "\n".join([*lines, ""])


def _prose(text: str) -> str:
    """Return the paragraphs of a help text; click's marks for "do not wrap" become code blocks."""
    paragraphs = []
    for part in text.split("\n\n"):
        if part.startswith("\b\n"):
            paragraphs.append("\n".join(f"    {line}" for line in part.splitlines()[1:]))
        else:
            paragraphs.append(_escaped(" ".join(part.split())))
    return "\n\n".join(paragraphs)


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Escape what Markdown would read as a mark, outside of code."""
    return re.sub(r"(`[^`]*`)|([<*\[\]])", lambda m: m[1] or f"\\{m[2]}", text)


def pictures_page() -> str:
    """Return docs/pictures.md with the diagram that the table of states draws now."""
    page = (DOCS / "pictures.md").read_text(encoding="utf-8")
    assert page.count(BEGIN) == 1, f"docs/pictures.md has no single marker {BEGIN.strip()}"
    before, rest = page.split(BEGIN)
    return before + BEGIN + diagram_section() + END + rest.split(END, 1)[1]


GENERATED: Mapping[Path, Callable[[], str]] = {
    DOCS / "cli.md": command_page,
    DOCS / "pictures.md": pictures_page,
}
"""Each document that is made from the code, wholly or between markers, and what makes it."""


def main() -> None:
    """Write every document that is not current, and name it."""
    for path, make in GENERATED.items():
        text = make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
