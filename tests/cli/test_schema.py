"""`subagent schema`: the JSON Schema of the files of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from subagent_server.host.clock import now
from tests.cli.command import Cli, asked


def file_of(cli: Cli, run_id: str, what: str) -> Path:
    """Return the file that a schema is for."""
    run = cli.store.paths.run(run_id)
    return {"meta": run.meta, "request": run.request, "result": run.result}[what].path


def schema(cli: Cli, what: str) -> dict[str, Any]:
    """Return a schema, checked to be one."""
    printed: dict[str, Any] = json.loads(cli("schema", what).stdout)
    Draft202012Validator.check_schema(printed)
    return printed


@pytest.mark.parametrize("what", ["meta", "request", "result"])
def test_the_files_of_a_run_agree_with_the_schema(cli: Cli, what: str) -> None:
    run_id = cli.completed("aaaaaa", output={"verdict": "fine"}, label="the label")
    cli("show", run_id)
    path = file_of(cli, run_id, what)
    validator = Draft202012Validator(schema(cli, what))
    found = json.loads(path.read_text(encoding="utf-8"))
    validator.validate(found)
    key = {"meta": "status", "request": "prompt", "result": "outcome"}[what]
    with pytest.raises(ValidationError):
        validator.validate({**found, key: 7})


def test_a_run_that_asks_agrees_with_the_schema(cli: Cli) -> None:
    with cli.living("aaaaaa", asked("Which?", "blue")) as run_id:
        meta = json.loads(cli.meta(run_id).to_json())
    Draft202012Validator(schema(cli, "meta")).validate(meta)
    assert meta["messages"][0]["questionTimestamp"].startswith(f"{now():%Y-}")


def test_it_is_json_with_and_without_json(cli: Cli) -> None:
    assert cli("schema", "meta").stdout == cli("schema", "meta", "--json").stdout
    printed = schema(cli, "meta")
    assert printed["title"] == "run.meta.json"
    assert {"runId", "status", "pendingQuestions", "withDescendants"} <= printed["properties"].keys()
