"""`subagent schema`: the JSON Schema of the files of a run, for programs that read them."""

import click

from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.output import out_json
from subagent_server.domain.records import Record, RunMeta, RunRequest, RunResult

FILES: dict[str, tuple[str, type[Record]]] = {
    "meta": ("run.meta.json", RunMeta),
    "request": ("request.json", RunRequest),
    "result": ("result.json", RunResult),
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@click.command()
@click.argument("file", type=click.Choice(list(FILES)), metavar=f"[{'|'.join(FILES)}]")
@json_option
def schema(file: str, as_json: bool) -> None:
    """Print the JSON Schema of a file of a run.

    `meta` is run.meta.json, its state; `request` is request.json, what was asked; `result` is result.json,
    how it ended. It is JSON with and without --json.
    """
    name, record = FILES[file]
    body = record.model_json_schema(by_alias=True, mode="validation")
    out_json({"$schema": DIALECT, **body, "title": name})
