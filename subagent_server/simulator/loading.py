"""From a file or a dict to a `Script`, with one sentence for whatever is wrong in it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from subagent_server.simulator.errors import ScriptError
from subagent_server.simulator.script import Script, Turn

_BLOCK_TAGS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


class _Loader(yaml.SafeLoader):
    """YAML as JSON users expect it: dates stay text, and a key given twice is an error."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        double = next((key for number, key in enumerate(keys) if key in keys[:number] and key != "<<"), None)
        if double is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {double!r} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def load_script(source: Script | Mapping[str, Any] | Path | str) -> Script:
    """Return the script that `source` holds: a file (`.json`, anything else is read as YAML) or its content.

    Raises:
        ScriptError: it cannot be read or is not a script; the sentence says where and what is allowed.
    """
    if isinstance(source, Script):
        return source
    if isinstance(source, Mapping):
        return _checked(dict(source), "The script")
    return parse_script(_read(Path(source)), str(source))


def parse_script(text: str, name: str) -> Script:
    """Return the script in `text`, the content of a file `name`. Raises as `load_script` does."""
    return _checked(_parsed(text, Path(name)), name)


def script_text(path: Path) -> str:
    """Return the content of a script file, which is a script. Raises as `load_script` does."""
    text = _read(path)
    parse_script(text, str(path))
    return text


def as_turn(answer: Turn | Mapping[str, Any]) -> Turn:
    """Return the value of a respond function as a turn.

    Raises:
        ScriptError: it is not one.
    """
    if isinstance(answer, Turn):
        return answer
    try:
        return Turn.model_validate(answer)
    except ValidationError as error:
        raise ScriptError(_sentence("The answer of the respond function", error)) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        why = error.strerror or str(error)
        raise ScriptError(
            f"The script {path} cannot be read ({why}): give the path of a YAML or JSON file."
        ) from error
    except UnicodeDecodeError as error:
        raise ScriptError(
            f"The script {path} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error


def _parsed(text: str, path: Path) -> Any:
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except json.JSONDecodeError as error:
        raise ScriptError(
            f"{path}, line {error.lineno}, is not JSON ({error.msg}): mend it there."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}," if mark else ""
        raise ScriptError(f"{path}{line} is not YAML ({error.problem}): mend it there.") from error
    except yaml.YAMLError as error:
        first = " ".join(str(error).split())
        raise ScriptError(f"{path} is not YAML ({first}): mend it there.") from error


def _checked(content: Any, source: str) -> Script:
    try:
        return Script.model_validate(content)
    except ValidationError as error:
        raise ScriptError(_sentence(source, error)) from error


def _sentence(source: str, error: ValidationError) -> str:
    """Return the first problem as one sentence, and how many more there are."""
    problems = error.errors(include_url=False)
    place = _place(problems[0]["loc"])
    where = f"{source}: {place}" if place else source
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where} {_problem(problems[0])}{more}."


def _place(loc: tuple[int | str, ...]) -> str:
    """Return a pydantic location as a path: `turns[1].tool_use[0].name`."""
    path = ""
    for number, step in enumerate(loc):
        is_tag = step in _BLOCK_TAGS and loc[number - 2 : number - 1] == ("content",)
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "[key]":
            path += " as a name"
        elif not is_tag:
            path += f".{step}" if path else step
    return path


def _problem(problem: Any) -> str:
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return "is missing, and it must be given"
    if problem["type"] == "union_tag_invalid":
        return f"has the unknown type {problem['ctx']['tag']!r}: allowed are {', '.join(sorted(_BLOCK_TAGS))}"
    message: str = problem["msg"]
    return re.sub(r"^\w+ should", "should", message)
