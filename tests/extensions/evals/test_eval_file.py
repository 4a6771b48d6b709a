"""Evaluation files are refused in one sentence, with the line of what is wrong."""

import json
import time
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from subagent_server.extensions.evals import trials
from subagent_server.extensions.evals.eval_file import (
    BadEvalFile,
    EvalCase,
    EvalFile,
    eval_schema,
    reach_in,
    read_eval_file,
)
from subagent_server.extensions.evals.trials import Evaluation, Trial
from subagent_server.run.errors import StorageFailed
from subagent_server.settings import read_settings
from subagent_server.verbs.service import Service, open_service

CASE = "agents: [a]\ncases:\n- name: x\n  prompt: y\n  expect:\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"{CASE}  - patern: a\n", 6, "not a key here (nearest: pattern)"),
        (f"{CASE}  - pattern: '('\n", 6, "no regular expression"),
        (f"{CASE}  - pattern: '{'(' * 900 + ')' * 900}'\n", 6, "more than 1000 characters"),
        (f"{CASE}  - pattern: 'a{{99999999999}}'\n", 6, "no regular expression"),
        (f"{CASE}  - {{pattern: a, schema: {{}}}}\n", 6, "exactly one of"),
        (f"{CASE}  - {{pattern: a, timeoutSeconds: 3}}\n", 6, "belongs to a command"),
        (f"{CASE}  - schema: {{type: 3}}\n", None, "schema of case 'x'"),
        (f"{CASE}  - schema: false\n", None, "no result fits, because at its root it is false"),
        (f"{CASE}  - schema: x.json\n", 6, "expect[0].schema' must be a mapping of keys."),
        (f"{CASE}  - match: []\n", 6, "expect[0].match' list should have at least 1 item"),
        (f"{CASE}  - schemaPath: nowhere.json\n", None, "nowhere.json"),
        ("agents: [a]\ncases:\n- name: x\n", 3, "'cases[0].prompt' is missing"),
        ("agent: [a]\ncases: [{name: x, prompt: y}]", 1, "'agent' is not a key here (nearest: agents)"),
        ("agents: a\ncases: [{name: x, prompt: y}]", 1, "'agents' must be a list"),
        ("agents: [a]\ncases:\n- x\n", 2, "'cases[0]' must be a mapping"),
        ("agents: [a]\ntimeoutSeconds: 5m\ncases: [{name: x, prompt: y}]", 2, "seconds, such as 600"),
        ("agents: [a]\ntimes: 0\ncases: [{name: x, prompt: y}]", 2, "greater than or equal to 1"),
        ("cases: [{name: x, prompt: y}]", None, "names no agent for the case 'x'"),
        (
            "agents: [a]\ncases: [{name: x, prompt: y}, {name: x, prompt: z}]",
            None,
            "two cases of the name 'x'",
        ),
        ("agents: [a]\nagents: [b]\n", 2, "'agents' appears twice"),
        ("agents: [a\n", 2, "not YAML"),
        ("just text", None, "not a mapping"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, line: int | None, said: str) -> None:
    path = tmp_path / "evals.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadEvalFile) as refused:
        read_eval_file(path)
    assert said in str(refused.value)
    assert (f", line {line}," in str(refused.value)) == (line is not None)


def test_words_and_targets_may_look_like_numbers_and_editors_take_them(tmp_path: Path) -> None:
    path = tmp_path / "evals.yaml"
    text = (
        f"{CASE}  - command: [seq, 3, true]\n  - number: 51\n  - match: a\n  - number: true\n  target: 51\n"
    )
    path.write_text(text, encoding="utf-8")
    (case,) = read_eval_file(path).cases
    assert case.expect[0].command == ["seq", "3", "true"] and case.target == ["51"]
    Draft202012Validator(eval_schema()).validate(yaml.safe_load(text))


def test_a_case_has_the_same_digest_in_every_version() -> None:
    case = EvalCase.model_validate({"name": "x", "prompt": "y", "expect": [{"command": ["true"]}]})
    assert Trial(case, "a", None, 1).digest == "f42b70568bb9f06d"


def test_the_schema_of_a_dataset_is_judged_once_and_not_for_each_row(tmp_path: Path) -> None:
    properties = {f"p{number}": {"type": "string"} for number in range(300)}
    (tmp_path / "rows.jsonl").write_text('{"prompt": "y"}\n' * 1_000, encoding="utf-8")
    (tmp_path / "schema.json").write_text(json.dumps({"properties": properties}), encoding="utf-8")
    path = tmp_path / "evals.yaml"
    dataset = {"path": "rows.jsonl", "expect": [{"schemaPath": "schema.json"}]}
    path.write_text(json.dumps({"agents": ["a"], "dataset": dataset}), encoding="utf-8")
    began = time.process_time()
    cases = read_eval_file(path).cases
    assert time.process_time() - began < 10, "for each row it takes 40 s"
    assert len(cases) == 1_000 and cases[-1].expect[0].json_schema == {"properties": properties}


def test_a_run_that_the_disk_lets_nobody_stop_keeps_the_others_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: Service, run_id: str, *__: object) -> None:
        if run_id == "a":
            raise StorageFailed(tmp_path, "no space left on device")

    monkeypatch.setattr(trials, "stop", stop)
    service = open_service(read_settings(environment={}, cwd=tmp_path))
    file = EvalFile.model_validate({"agents": ["a"], "cases": [{"name": "x", "prompt": "y"}]})
    assert Evaluation(service, file, tmp_path, active={"a", "b"}).stop_active() == ["b"]


@pytest.mark.parametrize("name", ["x.yaml", "x.yml"])
def test_trust_covers_the_commands_of_each_file_of_a_project(tmp_path: Path, name: str) -> None:
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / name).write_text(f"{CASE}  - command: ['true']\n", encoding="utf-8")
    assert dict(reach_in(tmp_path)) == {f"evaluation evals/{name}": {"x.1": ["true"]}}
