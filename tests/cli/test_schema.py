"""`subagent schema`: the JSON Schemas of the files of a run and of agent files."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.cli.command import Cli
from tests.helpers.processes import REPOSITORY


def file_of(cli: Cli, run_id: str, what: str) -> Path:
    run = cli.store.paths.run(run_id)
    return {"meta": run.meta, "request": run.request, "result": run.result}[what].path


def schema(cli: Cli, what: str) -> dict[str, Any]:
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


def refused(cli: Cli, **changes: object) -> list[str]:
    """Return the paths at which the schema refuses the state of a run that has completed, changed so."""
    run_id = cli.completed("aaaaaa")
    found = {**json.loads(file_of(cli, run_id, "meta").read_text(encoding="utf-8")), **changes}
    found = {key: value for key, value in found.items() if value is not ...}
    errors = Draft202012Validator(schema(cli, "meta")).iter_errors(found)
    return sorted("/".join(map(str, error.absolute_path)) for error in errors)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, []),
        ({"revision": -1}, ["revision"]),
        ({"runId": "../x"}, ["runId"]),
        ({"usage": {"inputTokens": -5}}, ["usage", *["usage"] * 4, "usage/inputTokens"]),
        ({"status": "failed"}, [""]),
        ({"status": "stopped"}, [""]),
        ({"error": {"code": "tired", "message": "m"}}, ["error/code"]),
        *(({key: ...}, [""]) for key in ("usage", "transitions", "pendingQuestions", "createdAt")),
    ],
)
def test_the_schema_of_a_state_is_as_strict_as_its_writer(
    cli: Cli, changes: dict[str, object], where: list[str]
) -> None:
    assert set(refused(cli, **changes)) == set(where)


@pytest.mark.parametrize("what", ["agent", "cpe", "eval"])
def test_the_schemas_in_the_documents_are_those_that_are_printed(cli: Cli, what: str) -> None:
    document = REPOSITORY / "docs" / "schemas" / f"{what}.schema.json"
    assert json.loads(document.read_text(encoding="utf-8")) == schema(cli, what), "run `make docs`"
