"""`subagent schema`: the JSON Schemas of the files of a run and of agent files."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.cli.command import Cli
from tests.helpers.processes import REPOSITORY


def schema(cli: Cli, what: str) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(cli("schema", what).stdout)
    Draft202012Validator.check_schema(printed)
    return printed


@pytest.mark.parametrize("what", ["meta", "request", "result"])
def test_the_files_of_a_run_agree_with_the_schema(cli: Cli, what: str) -> None:
    run_id = cli.completed("aaaaaa", output={"verdict": "fine"}, label="the label")
    cli("show", run_id)
    run = cli.store.paths.run(run_id)
    file = {"meta": run.meta, "request": run.request, "result": run.result}[what]
    validator = Draft202012Validator(schema(cli, what))
    found = json.loads(file.path.read_text(encoding="utf-8"))
    validator.validate(found)
    key = {"meta": "status", "request": "prompt", "result": "outcome"}[what]
    with pytest.raises(ValidationError):
        validator.validate({**found, key: 7})


@pytest.mark.parametrize("what", ["agent", "cpe", "eval"])
def test_the_schemas_in_the_documents_are_those_that_are_printed(cli: Cli, what: str) -> None:
    document = REPOSITORY / "docs" / "schemas" / f"{what}.schema.json"
    assert json.loads(document.read_text(encoding="utf-8")) == schema(cli, what), "run `make docs`"
