"""The registry of extensions: parts that a user can do without, each in a folder of its own.

The core imports no extension by name. What one gives stands here as `module:attribute` and is imported when
it is first used; so an extension is removed by deleting its folder and its line in `EXTENSIONS`. An agent
that asks for what no extension gives is refused with a sentence, as by any other check before a start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A verb of the command line: a click command, its line in `--help`, and the verb it follows there."""

    where: str
    help: str
    after: str


@dataclass(frozen=True)
class Extension:
    """What an extension gives, each as `module:attribute`.

    `tools`: by the key of agent files that asks for it, a function that takes a `toolkit.tool.RunTools` and
    returns the tools that the model gets in the place of those of the MCP servers.
    `runners`: by the value of `runner`, a function that opens one (`worker/runners.py`).
    `schemas`: by the name for `subagent schema`, a function that returns the JSON Schema of a file.
    `reach` takes the directory of a project and yields what trust in it covers besides agents and servers:
    for each file, its name in the pins, and commands and places by their subject.
    `script_reader` returns the checked text of the script that plays a model, `script_player` is a context in
    which it is played for a worker.
    """

    commands: Mapping[str, Command] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    runners: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    reach: str | None = None
    script_reader: str | None = None
    script_player: str | None = None


_HERE = "subagent_server"
EXTENSIONS: Mapping[str, Extension] = {
    "code_mode": Extension(
        tools={"codeMode": f"{_HERE}.toolkit.code_mode.tool:with_programs"},
    ),
    "evals": Extension(
        commands={
            "eval": Command(
                f"{_HERE}.extensions.evals.cli:eval_", "Try cases with agents and models.", "script"
            )
        },
        schemas={"eval": f"{_HERE}.extensions.evals.file:eval_schema"},
        reach=f"{_HERE}.extensions.evals.file:reach_in",
    ),
}


def commands() -> dict[str, Command]:
    """Return the verbs of all extensions, by their names."""
    return {name: each for extension in EXTENSIONS.values() for name, each in extension.commands.items()}


def tools_for(key: str) -> str | None:
    """Return the function that gives the tools for a key of agent files; None if no extension has it."""
    return next((each.tools[key] for each in EXTENSIONS.values() if key in each.tools), None)


def runners() -> dict[str, str]:
    """Return the functions that open a runner, by its name."""
    return {name: where for each in EXTENSIONS.values() for name, where in each.runners.items()}


def reaches() -> list[str]:
    """Return the functions that yield what trust in a directory covers."""
    return [each.reach for each in EXTENSIONS.values() if each.reach is not None]


def schemas() -> dict[str, str]:
    """Return the functions that make the JSON Schema of a file, by its name."""
    return {name: where for each in EXTENSIONS.values() for name, where in each.schemas.items()}


def imported(where: str) -> Any:
    """Import what stands at `module:attribute` and return it."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)
