"""The registry of extensions: parts that a user can do without, each in a folder of its own.

The core imports no extension by name. What one adds is listed here as `module:attribute` and imported when
it is first used; so an extension is removed by deleting its folder and its line in `EXTENSIONS`. An agent
that asks for what no extension adds is refused with a sentence, as by any other check before a start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A verb of the command line: a click command, its line in `--help`, and the verb before it there."""

    where: str
    help: str
    after: str = ""


@dataclass(frozen=True)
class Extension:
    """What an extension adds, each as `module:attribute`.

    `tools`: by the key of agent files that asks for it, a function that takes a `toolbox.tool.RunTools` and
    returns the tools that the model gets instead of those of the MCP servers; `refusals`: a function that
    yields why a start would refuse an agent with that key, a sentence each.
    `runners`: by the value of `runner`, a function that opens one (`worker/runners.py`); `runner_checks` is a
    module that checks an agent, before a start, for what these runners cannot keep (`verbs/check_agent.py`).
    `schemas`: by the name for `subagent schema`, a function that returns the JSON Schema of a file.
    `reach` takes the directory of a project and yields what trust in it covers besides agents and servers:
    for each file, its name in the pins, and commands and paths by their subject.
    `script_reader` returns the checked text of the script that plays a model, `script_player` is a context in
    which it is played for a worker.
    """

    commands: Mapping[str, Command] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    refusals: str | None = None
    runners: Mapping[str, str] = field(default_factory=dict)
    runner_checks: str | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)
    reach: str | None = None
    script_reader: str | None = None
    script_player: str | None = None


_HERE = "subagent_server"
EXTENSIONS: Mapping[str, Extension] = {
    "code_mode": Extension(
        commands={
            "tools": Command(
                f"{_HERE}.extensions.code_mode.tools_command:tools",
                "Print the functions that programs of an agent can call.",
                "new",
            ),
        },
        tools={"codeMode": f"{_HERE}.extensions.code_mode.code_tool:with_programs"},
        refusals=f"{_HERE}.extensions.code_mode.python_text:refusals",
        runners={"flow": f"{_HERE}.extensions.code_mode.flow_runner:open_runner"},
    ),
    "programs": Extension(
        runners=dict.fromkeys(
            ("claude", "codex", "gemini", "acp", "command"),
            f"{_HERE}.extensions.programs.program_runner:open_runner",
        ),
        runner_checks=f"{_HERE}.extensions.programs.program_checks",
    ),
    "simulator": Extension(
        commands={
            "prompt": Command(
                f"{_HERE}.extensions.simulator.prompt_command:prompt",
                "Show what the model of an agent would get, without a call.",
                "agents",
            ),
            "script": Command(
                f"{_HERE}.extensions.simulator.script_command:script",
                "Turn a run that has ended into a script that plays it again.",
                "agents",
            ),
            "demo": Command(
                f"{_HERE}.extensions.simulator.demo_command:demo",
                "Show a whole run with a scripted model, without a key.",
                "completion",
            ),
        },
        script_reader=f"{_HERE}.extensions.simulator.model_script:script_text",
        script_player=f"{_HERE}.extensions.simulator.played:script_played",
    ),
    "evals": Extension(
        commands={
            "eval": Command(
                f"{_HERE}.extensions.evals.eval_command:eval_", "Try cases with agents and models.", "agents"
            ),
        },
        schemas={"eval": f"{_HERE}.extensions.evals.eval_file:eval_schema"},
        reach=f"{_HERE}.extensions.evals.eval_file:reach_in",
    ),
}


def commands() -> dict[str, Command]:
    """Return the verbs of all extensions, by their names."""
    return {name: each for extension in EXTENSIONS.values() for name, each in extension.commands.items()}


def tools_for(key: str) -> str | None:
    """Return the function that makes the tools for a key of agent files; None if no extension has it."""
    return next((each.tools[key] for each in EXTENSIONS.values() if key in each.tools), None)


def refusals_for(key: str) -> str | None:
    """Return the function that yields why agents with a key of agent files are refused, if there is one."""
    return next((each.refusals for each in EXTENSIONS.values() if key in each.tools), None)


def runners() -> dict[str, str]:
    """Return the functions that open a runner, by its name."""
    return {name: where for each in EXTENSIONS.values() for name, where in each.runners.items()}


def used_by_runs() -> set[str]:
    """Return the functions of all extensions that a worker may call, for a zygote that loads them before."""
    return {where for each in EXTENSIONS.values() for where in (*each.tools.values(), *each.runners.values())}


def checks_of(runner: str) -> str | None:
    """Return the module that checks agents of this runner; None for those of the core."""
    return next((each.runner_checks for each in EXTENSIONS.values() if runner in each.runners), None)


def script_reader() -> str | None:
    """Return the function that reads scripts; None if no extension plays them."""
    return next((each.script_reader for each in EXTENSIONS.values() if each.script_reader), None)


def script_player() -> str | None:
    """Return the context in which a script is played; None if no extension plays them."""
    return next((each.script_player for each in EXTENSIONS.values() if each.script_player), None)


def reaches() -> list[str]:
    """Return the functions that yield what trust in a directory covers."""
    return [each.reach for each in EXTENSIONS.values() if each.reach is not None]


def schemas() -> dict[str, str]:
    """Return the functions that make the JSON Schema of a file, by its name."""
    return {name: where for each in EXTENSIONS.values() for name, where in each.schemas.items()}


def imported(where: str) -> Any:
    """Import what `module:attribute` names, or the module alone, and return it."""
    module, _, attribute = where.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
