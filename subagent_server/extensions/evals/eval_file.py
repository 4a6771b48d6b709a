"""Evaluation files for `subagent eval`: cases, and the expectations that their results have to meet.

A file is read as strictly as its schema demands: an unknown key, or a value of the wrong type, is refused
with its line.
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from subagent_server.agents.agent_file import IN_WORDS
from subagent_server.agents.output_schemas import BadSchema, check_pattern, inline_schema, schema_file
from subagent_server.agents.yaml_reader import (
    Block,
    NotYaml,
    Plain,
    Unreadable,
    Value,
    as_json,
    parse,
    read_text,
    shown,
)
from subagent_server.extensions.evals.scorers import SCORERS, numbers_of
from subagent_server.run.agent_definition import JsonSchema
from subagent_server.run.durable import as_object
from subagent_server.run.errors import CallerError, shorten
from subagent_server.run.records import Record
from subagent_server.run.schemas import DIALECT
from subagent_server.run.states import MAX_PROMPT_CHARACTERS

EVALS = "evals"
"""The directory of a project for its evaluation files; they may lie next to it, too."""
MAX_TIMES = 1_000
MAX_ROWS = 10_000
MAX_VALUES = 100_000
"""Of all cases of a file."""
MAX_COMMAND_SECONDS = 600
COMMAND_SECONDS = 60
"""How long an expected command may take, unless its expectation has a time of its own."""
_MOST_TRUSTED = 200


def _word(value: object) -> object:
    """Return an argument as it is written: `true` and `3` are words of a command."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_Scalar = str | float | bool
_Word = Annotated[str, BeforeValidator(_word, json_schema_input_type=_Scalar), Field(min_length=1)]
_Name = Annotated[str, Field(min_length=1, max_length=100)]
_Text = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, Field(gt=0)]


def _texts(value: object) -> object:
    """Return what is wanted as a list of texts: one text or number is a list of itself."""
    return [_word(each) for each in value] if isinstance(value, list) else [_word(value)]


def _texts_or_true(value: object) -> object:
    return value if value is True else _texts(value)


_Written = _Scalar | list[_Scalar]
_Targets = Annotated[
    list[_Text], BeforeValidator(_texts, json_schema_input_type=_Written), Field(min_length=1)
]
_Target = Annotated[
    Annotated[list[_Text], Field(min_length=1)] | Literal[True],
    BeforeValidator(_texts_or_true, json_schema_input_type=_Written),
]


class BadEvalFile(CallerError):
    """An evaluation file that cannot be used; `line` counts from 1, if a line is to blame."""

    code = "bad_eval_file"

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        where = f"{shown(path)}, line {line}," if line else shown(path)
        super().__init__(f"{where} is not a usable evaluation file: {reason}.")


class _Part(Record):
    """A part of the file: the keys that it has, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Judging(_Part):
    """An agent that judges a result: it passes if the judge answers so."""

    agent: _Name = Field(description="The agent that judges.")
    question: _Text = Field(description="What the result has to be, for the judge to say that it passes.")
    script: _Text | None = Field(default=None, description="A script that plays the model of the judge.")


class Expectation(_Part):
    """One demand on a result: exactly one of the keys besides `timeoutSeconds`."""

    json_schema: JsonSchema | None = Field(
        default=None, alias="schema", description="JSON Schema 2020-12 of the result."
    )
    schema_path: _Text | None = Field(
        default=None, description="A JSON file with the schema, relative to this file."
    )
    pattern: _Text | None = Field(
        default=None, description="A regular expression of Python, found anywhere; ^ and $ match at lines."
    )
    command: list[_Word] | None = Field(
        default=None,
        min_length=1,
        description="A program with its arguments that ends with 0. It runs where the agent worked, and "
        "reads the result on stdin. The file has to be trusted.",
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_COMMAND_SECONDS)] = Field(
        default=COMMAND_SECONDS, description="How long the command may take."
    )
    judge: Judging | None = Field(default=None, description="An agent that judges the result.")
    vote: list[Judging] | None = Field(
        default=None, min_length=2, description="Several judges: more than half of them have to let it pass."
    )
    match: _Target | None = Field(
        default=None, description="The result is this or ends with it; `true` is the `target` of the case."
    )
    includes: _Target | None = Field(default=None, description="The result holds this text.")
    choice: _Target | None = Field(
        default=None, description="The result chooses this letter, or these: `ANSWER: B`, or B alone."
    )
    number: _Target | None = Field(default=None, description="The last number of the result is this.")
    tolerance: Annotated[Decimal, Field(ge=0, strict=False)] = Field(
        default=Decimal(0), description="How far the number may be off."
    )

    @property
    def scorer(self) -> tuple[str, list[str] | bool] | None:
        """The ready scorer, and the targets that it has; `True` means those of the case."""
        found = ((name, getattr(self, name)) for name in SCORERS if getattr(self, name) is not None)
        return next(found, None)

    @model_validator(mode="after")
    def _is_one(self) -> "Expectation":
        kinds = ("json_schema", "schema_path", "pattern", "command", "judge", "vote", *SCORERS)
        present = [kind for kind in kinds if kind in self.model_fields_set]
        if len(present) != 1:
            raise ValueError(
                "must be exactly one of schema, schemaPath, pattern, command, judge, vote, "
                f"{', '.join([*SCORERS][:-1])} and {[*SCORERS][-1]}"
            )
        if "tolerance" in self.model_fields_set and present != ["number"]:
            raise ValueError("has a tolerance, which belongs to a number")
        if isinstance(self.number, list) and not all(map(numbers_of, self.number)):
            raise ValueError("has a number that is none")
        if "timeout_seconds" in self.model_fields_set and present != ["command"]:
            raise ValueError("has timeoutSeconds, which belongs to a command")
        if self.pattern is not None:
            try:
                check_pattern(self.pattern, re.MULTILINE)
            except (BadSchema, ValueError) as error:
                raise ValueError(f"has a pattern that is no regular expression ({error})") from error
        return self


class EvalCase(_Part):
    """One task and the expectations of its result. Without `expect`, its runs have to complete."""

    name: _Name = Field(description="The name of the case in tables.")
    prompt: _Text = Field(description="What the agent should do.")
    agents: list[_Name] | None = Field(
        default=None, min_length=1, description="The agents of this case, instead of those of the file."
    )
    inputs: list[_Text] = Field(default_factory=list, description="Input files, relative to this file.")
    cwd: _Text | None = Field(
        default=None, description="Where the agent works, relative to this file; else where the call is made."
    )
    answer: _Text | None = Field(
        default=None, description="The answer to each question of the agent; without it a question fails."
    )
    script: _Text | None = Field(
        default=None, description="A script that plays the model, relative to this file."
    )
    expect: list[Expectation] = Field(default_factory=list, description="What the result has to be.")
    target: _Targets | None = Field(
        default=None, description="What is wanted, or several texts of which one is, for ready scorers."
    )

    @model_validator(mode="after")
    def _has_target(self) -> "EvalCase":
        scorers = [each.scorer for each in self.expect if each.scorer is not None]
        if any(targets is True for _, targets in scorers) and not self.target:
            raise ValueError("has a scorer with `true` and no `target`: name what is wanted")
        if ("number", True) in scorers and not all(map(numbers_of, self.target or [])):
            raise ValueError("has a `target` that is no number")
        if self.target and not self.expect:
            raise ValueError("has a `target` and no `expect`: name a scorer, such as `- match: true`")
        return self


class Dataset(_Part):
    """Cases from a file of rows: CSV (.csv) with the names of its columns first, or JSON lines."""

    path: _Text = Field(description="The file, relative to this one.")
    name: _Name = Field(default="name", description="The column with the name of the case, else `row 1`.")
    prompt: _Name = Field(default="prompt", description="The column with the prompt.")
    target: _Name = Field(default="target", description="The column with what is wanted.")
    agents: list[_Name] | None = Field(default=None, min_length=1, description="The agents of its cases.")
    cwd: _Text | None = Field(default=None, description="Where the agents work.")
    answer: _Text | None = Field(default=None, description="The answer to each question.")
    script: _Text | None = Field(default=None, description="A script that plays the model.")
    expect: list[Expectation] = Field(default_factory=list, description="What each result has to be.")


class EvalFile(_Part):
    """A whole file: its cases, and with whom each is tried how often."""

    agents: list[_Name] = Field(default_factory=list, description="The agents that each case is tried with.")
    models: list[_Text] = Field(
        default_factory=list, description="Models, side by side; without any, that of each agent's file."
    )
    times: Annotated[int, Field(ge=1, le=MAX_TIMES)] = Field(
        default=1, description="How often each case is tried with each agent and model."
    )
    budget_usd: Annotated[Decimal, Field(gt=0, strict=False)] | None = Field(
        default=None,
        description="US dollars for all runs together: then no run starts, those at work stop.",
    )
    timeout_seconds: _Seconds | None = Field(
        default=None, description="Seconds of working time of each run, instead of those of the agent's file."
    )
    dataset: Dataset | None = Field(default=None, description="Further cases, from a file of rows.")
    cases: list[EvalCase] = Field(default_factory=list, description="The cases, in the order of the table.")

    @property
    def judges(self) -> list[Judging]:
        """The judges of all cases."""
        expected = [each for case in self.cases for each in case.expect]
        alone = [each.judge for each in expected if each.judge is not None]
        return [*alone, *(judge for each in expected for judge in each.vote or ())]

    @property
    def fault(self) -> str | None:
        """What is wrong with the cases together, or None."""
        names = [case.name for case in self.cases]
        double = next((name for name, count in Counter(names).items() if count > 1), None)
        if double is not None:
            return f"has two cases of the name {shorten(double)}"
        lacking = next((case.name for case in self.cases if not (case.agents or self.agents)), None)
        if lacking is not None:
            return f"names no agent for the case {shorten(lacking)}: add `agents`, a list"
        return None

    @model_validator(mode="after")
    def _fits(self) -> "EvalFile":
        if not self.cases and self.dataset is None:
            raise ValueError("has neither `cases` nor a `dataset`: add what is to be tried")
        if self.fault is not None:
            raise ValueError(self.fault)
        return self


def read_eval_file(path: Path) -> EvalFile:
    """Return the content of an evaluation file; the schemas in files of their own are read too.

    Raises:
        BadEvalFile.
    """
    try:
        whole = parse(read_text(path), most_values=MAX_VALUES)
    except Unreadable as error:
        raise BadEvalFile(path, error.reason, error.line) from error
    except NotYaml as error:
        raise BadEvalFile(path, f"it is not YAML ({error.reason})", error.line) from error
    if not isinstance(whole, Block):
        raise BadEvalFile(path, "it is not a mapping with the key `cases`")
    if (repeated := next(_repeated(whole), None)) is not None:
        raise BadEvalFile(path, f"{shorten(repeated[0])} appears twice", repeated[1])
    try:
        read = EvalFile.model_validate(as_json(whole))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # A misspelt key is missing too, and only the one that is there has a nearest name.
        problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
        raise BadEvalFile(path, _reason(problem), _line(whole, problem["loc"])) from error
    if read.dataset is not None:
        read = read.model_copy(update={"cases": [*read.cases, *_cases_of(path, read.dataset)]})
        if (fault := read.fault) is not None:
            raise BadEvalFile(path, f"with its dataset it {fault}")
    return read.model_copy(update={"cases": _with_schemas(path, read.cases)})


def _cases_of(path: Path, dataset: Dataset) -> list[EvalCase]:
    """Return the cases of a file of rows. Raises BadEvalFile."""
    source = path.parent / dataset.path
    cases: list[EvalCase] = []
    for number, row in enumerate(_rows_of(source), 1):
        if number > MAX_ROWS:
            raise BadEvalFile(source, f"it has more than {MAX_ROWS:,} rows: split it")
        prompt, target = row.get(dataset.prompt), row.get(dataset.target)
        if not isinstance(prompt, str) or not prompt:
            known = ", ".join(map(str, row)) or "nothing"
            raise BadEvalFile(source, f"row {number} has no text as {dataset.prompt} (it has {known})")
        named = row.get(dataset.name)
        defaults = {key: getattr(dataset, key) for key in ("agents", "cwd", "answer", "script", "expect")}
        try:
            case = EvalCase.model_validate(
                {
                    **defaults,
                    "name": str(named) if named not in (None, "") else f"row {number}",
                    "prompt": prompt,
                    "target": None if target in (None, "", []) else target,
                }
            )
        except ValidationError as error:
            raise BadEvalFile(source, f"row {number}: {_reason(error.errors()[0])}") from error
        cases.append(case)
    if not cases:
        raise BadEvalFile(source, "it has no rows")
    return cases


def _rows_of(source: Path) -> Iterator[dict[str, Any]]:
    try:
        text = read_text(source)
    except Unreadable as error:
        raise BadEvalFile(source, error.reason, error.line) from error
    if source.suffix.lower() == ".csv":
        csv.field_size_limit(MAX_PROMPT_CHARACTERS)
        try:
            yield from _table(source, csv.DictReader(io.StringIO(text), strict=True))
        except csv.Error as error:
            raise BadEvalFile(source, f"it is not CSV ({error})") from error
        return
    for number, line in enumerate(text.split("\n"), 1):  # a text may hold other ends of lines
        if not line.strip():
            continue
        if (row := as_object(line)) is None:
            raise BadEvalFile(source, "it is no JSON object; a dataset is CSV or JSON lines", number)
        yield row


def _table(source: Path, rows: "csv.DictReader[str]") -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; empty cells around it, as spreadsheets write them, do not count."""
    columns = Counter(filter(None, rows.fieldnames or ()))
    if (repeated := next((name for name, count in columns.items() if count > 1), None)) is not None:
        raise BadEvalFile(source, f"the column {shorten(repeated)} appears twice", 1)
    for number, row in enumerate(rows, 1):
        if any(row.pop(None, ())):
            raise BadEvalFile(
                source, f"row {number} has more cells than columns: put quotes around a text with commas"
            )
        yield row


Reach = dict[str, list[str]]
"""What trust in a file has to cover: its commands, and the paths outside of its project.

The keys are the cases, with the number of the expectation or with `places`.
"""


def reach_of(path: Path, file: EvalFile) -> tuple[str, Path, Reach]:
    """Return what trust calls a file, the directory of its project, and its reach."""
    # By the real path: a link in a trusted project must not make a file from elsewhere one of its own.
    real = Path(os.path.realpath(path))
    project = real.parent.parent if real.parent.name == EVALS else real.parent
    return f"evaluation {real.relative_to(project)}", project, _reach(file, real, project)


def reach_in(project: Path) -> Iterator[tuple[str, Reach]]:
    """Yield what trust in a directory covers of its evaluation files; an unreadable one runs nothing."""
    for around in (project, project / EVALS):
        for path in islice(sorted(around.glob("*.y*ml")), _MOST_TRUSTED):
            with suppress(BadEvalFile):
                yield f"evaluation {path.relative_to(project)}", _reach(read_eval_file(path), path, project)


def _reach(file: EvalFile, path: Path, project: Path) -> Reach:
    found: Reach = {}
    top = os.path.realpath(project)
    rows = None if file.dataset is None else Path(os.path.realpath(path.parent / file.dataset.path))
    if rows is not None and not rows.is_relative_to(top):
        found["dataset"] = [str(rows)]
    for case in file.cases:
        for number, each in enumerate(case.expect, 1):
            if each.command is not None:
                found[f"{case.name}.{number}"] = each.command
        named = [*case.inputs, *([case.cwd] if case.cwd is not None else [])]
        paths = [Path(os.path.realpath(path.parent / name)) for name in named if "\0" not in name]
        if outside := [str(other) for other in paths if not other.is_relative_to(top)]:
            found[f"{case.name}.places"] = outside
    return found


def eval_schema() -> dict[str, Any]:
    """Return the JSON Schema of an evaluation file."""
    schema = EvalFile.model_json_schema(by_alias=True)
    return {"$schema": DIALECT, **schema, "title": "Evaluation file (evals/<name>.yaml)"}


def _with_schemas(path: Path, cases: Sequence[EvalCase]) -> list[EvalCase]:
    """Return cases whose schemas were checked and read from their files. Raises BadEvalFile."""

    @cache
    def schema_of(file: str | None, text: str) -> JsonSchema:  # all cases of a dataset have the same
        return inline_schema(Plain(text)) if file is None else schema_file(path.parent / file)

    def with_schema(each: Expectation) -> Expectation:
        if each.schema_path is None and each.json_schema is None:
            return each
        schema = schema_of(each.schema_path, json.dumps(each.json_schema))
        return each.model_copy(update={"json_schema": schema})

    found: list[EvalCase] = []
    for case in cases:
        try:
            found.append(case.model_copy(update={"expect": list(map(with_schema, case.expect))}))
        except BadSchema as error:
            raise BadEvalFile(path, f"the schema of case {shorten(case.name)}: {error}") from error
    return found


def _repeated(value: Value) -> Iterator[tuple[str, int]]:
    if isinstance(value, list):
        for item in value:
            yield from _repeated(item)
    elif isinstance(value, Block):
        yield from value.repeated.items()
        for item in value.values():
            yield from _repeated(item)


def _reason(problem: Any) -> str:
    """Return what is wrong, with the path of the key: `cases[0].expect[1] has ...`."""
    location = ""
    for step in problem["loc"]:
        if problem["type"] != "extra_forbidden" and "[" in str(step):
            continue  # pydantic's name of a kind that is taken, such as dict[str,any]
        location += f"[{step}]" if isinstance(step, int) else f"{location and '.'}{step}"
    location = shorten(location) if location else "the file"
    if problem["type"] == "extra_forbidden":
        known = [str(field.alias) for field in _part_at(problem["loc"]).model_fields.values()]
        near = get_close_matches(str(problem["loc"][-1]), known, n=1) or [", ".join(known)]
        return f"{location} is not a key here ({'nearest: ' if len(near[0].split()) == 1 else ''}{near[0]})"
    if problem["type"] == "missing":
        return f"{location} is missing"
    if problem["type"] == "value_error":
        return f"{location} {problem['ctx']['error']}"
    words = _IN_WORDS.get(problem["type"]) or problem["msg"].replace("Input should", "must")
    if location.strip("'").endswith("Seconds") and problem["type"].startswith("float"):
        words = "must be a number of seconds, such as 600"
    return f"{location} {words[0].lower()}{words[1:]}"


_IN_WORDS = {**IN_WORDS, **dict.fromkeys(("dict_type", "model_type"), "must be a mapping of keys")}
_PARTS: dict[str, type[_Part]] = {
    "cases": EvalCase,
    "expect": Expectation,
    "judge": Judging,
    "vote": Judging,
    "dataset": Dataset,
}


def _part_at(location: Sequence[int | str]) -> type[_Part]:
    """Return the model of the part that has the key at `location`."""
    inner = [_PARTS[step] for step in location[:-1] if isinstance(step, str) and step in _PARTS]
    return inner[-1] if inner else EvalFile


def _line(whole: Value, location: tuple[int | str, ...]) -> int | None:
    """Return the line of the last key of a path that the file has."""
    line, value = None, whole
    for step in location:
        if isinstance(value, Block) and str(step) in value:
            line, value = value.lines[str(step)], value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
            line = min(value.lines.values(), default=line) if isinstance(value, Block) else line
        else:
            break
    return line
