"""`subagent schema`: JSON Schemas of the files of a run and of agent files."""

import click

from subagent_server import extensions
from subagent_server.agents.templates import agent_schema, config_schema
from subagent_server.cli.console.app import json_option
from subagent_server.cli.console.terminal import out_json
from subagent_server.run.schemas import FILES, file_schema

_AGENT_FILES = {"agent": agent_schema, "cpe": config_schema}
_EXTENSIONS = extensions.schemas()
_NAMES = (*FILES, *_AGENT_FILES, *_EXTENSIONS)


@click.command()
@click.argument("file", type=click.Choice(_NAMES), metavar=f"[{'|'.join(_NAMES)}]")
@json_option
def schema(file: str) -> None:
    """Print the JSON Schema of a file of a run, or of an agent file.

    `meta` is run.meta.json, its state; `request` is request.json, what was asked; `result` is result.json,
    how it ended. `agent` is the front matter of agents/NAME.md, `cpe` is agents/NAME.yaml, `eval` the file of
    `subagent eval`. The output is JSON
    with and without --json.
    """
    if file in _EXTENSIONS:
        out_json(extensions.imported(_EXTENSIONS[file])())
    else:
        out_json(_AGENT_FILES[file]() if file in _AGENT_FILES else file_schema(file))
