"""An agent as a program: `NAME.flow.py`, read by its syntax tree alone, so that listing executes nothing.

The docstring is the description, upper-case constants are the keys of an agent file, and the signature of
`run` says which arguments the agent takes and what it returns. The whole text is the system prompt of the
definition: it is what the agent thinks by, and part of the identity of each call of it.
"""

import ast
import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

from subagent_server.agents.agent_file import Origin, read_definition
from subagent_server.agents.yaml_reader import (
    AgentFileError,
    Block,
    Notes,
    Plain,
    Value,
    canonical,
    is_ours,
    nearest_key,
)
from subagent_server.run.agent_definition import AgentDefinition, CodeMode, JsonSchema
from subagent_server.run.errors import shorten

SUFFIX = ".flow.py"
MAX_CHARACTERS = 64 << 10
"""A syntax tree takes about 250 times the space of its text, and no agent file may cost more than 16 MiB."""
MAX_DEPTH = 20
"""Of a type."""
RESERVED = frozenset(
    {"inputs", "label", "cwd", "waitSeconds", "wait_seconds", "key", "fresh", "on_question", "self"}
)
"""Names that mean something in every call of an agent."""
_KEYS = frozenset(
    map(
        canonical,
        (
            *("agents", "limits", "mcpServers", "sandbox", "network", "sandboxLimits", "sandboxRead"),
            *("sandboxWrite", "env", "cwd", "maxConcurrent", "disallowedTools", "tools", "isolation"),
            *("timeoutSeconds", "budgetUsd", "askTimeoutSeconds", "onAskTimeout"),
        ),
    )
)
"""What a flow can keep; the other keys of agent files are about a model."""
_NOT_OF_FLOWS = ("limits.maxTurns", "limits.idleTimeoutSeconds")
_TYPES: dict[str, JsonSchema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
    "list": {"type": "array"},
    "dict": {"type": "object"},
    "Any": True,
}
_CLOSED = "str, int, float, bool, None, list[...], dict[str, ...], Literal[...], X | Y, or a TypedDict here"


class _Wrong(Exception):
    """What a flow may not say; `node` has the line."""

    def __init__(self, reason: str, node: ast.AST) -> None:
        super().__init__(reason)
        self.line = getattr(node, "lineno", None)


def read_flow(path: Path, text: str, notes: Notes) -> AgentDefinition:
    """Return the agent that a program defines; its mistakes go to `notes`.

    Raises:
        AgentFileError: it is too long, or not Python.
    """
    if len(text) > MAX_CHARACTERS:
        raise AgentFileError(path, f"it is longer than {MAX_CHARACTERS >> 10} KiB, so make it shorter")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a text is the affair of its author
            tree = ast.parse(text)
    except SyntaxError as error:
        raise AgentFileError(path, f"it is not Python ({error.msg})", error.lineno) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise AgentFileError(path, "it is not Python that can be read here") from error
    block = _constants(tree, notes)
    if (description := (ast.get_docstring(tree) or "").strip()) != "":
        block.put("description", description, 1)
    definition = read_definition(block, Origin(path, path.name[: -len(SUFFIX)], text), notes)
    for key in _NOT_OF_FLOWS:
        if key in definition.lines:
            notes.fault(f"{key} cannot be kept: a flow has no model", definition.lines[key])
    update: dict[str, Any] = {
        "runner": "flow",
        "program_hash": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        "code_mode": CodeMode(enabled=True),
    }
    try:
        update["input_schema"], output = _signature(tree)
        update |= {} if output is None else {"output_schema": output}
    except _Wrong as error:
        notes.fault(str(error), error.line)
    except RecursionError:
        notes.fault("its types are nested too deeply")
    return definition.model_copy(update=update)


def _constants(tree: ast.Module, notes: Notes) -> Block:
    block = Block()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not name.isupper() or node.value is None:
            continue
        if not is_ours(name):
            near = nearest_key(name)
            if near is not None:
                notes.warn(f"{name} is a constant of the program (nearest key: {near})", node.lineno)
        elif canonical(name) not in _KEYS:
            notes.fault(f"{name} cannot be kept: a flow has no model and no prompt of its own", node.lineno)
        else:
            try:
                block.put(name.lower(), _as_value(ast.literal_eval(node.value), node.lineno), node.lineno)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                notes.fault(f"{name} must be a literal: the file is read, and not executed", node.lineno)
    return block


def _as_value(given: object, line: int) -> Value:
    if isinstance(given, str):
        return given
    if given is None or isinstance(given, bool):
        return Plain(json.dumps(given))
    if isinstance(given, int | float):
        return Plain(repr(given))
    if isinstance(given, list | tuple):
        return [_as_value(each, line) for each in given]
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise TypeError
    block = Block()
    for key, value in given.items():
        block.put(key, _as_value(value, line), line)
    return block


# -- the signature


def _signature(tree: ast.Module) -> tuple[JsonSchema, JsonSchema | None]:
    """Return the schema of the arguments of `run`, and that of what it returns: None for a text."""
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "run"
    ]
    if len(found) != 1:
        raise _Wrong("a flow defines one function run(), on the first level", found[-1] if found else tree)
    run = found[0]
    if run.decorator_list:
        raise _Wrong("run() has a decorator, and nobody can read what that makes of it", run)
    given = run.args
    if given.posonlyargs or given.vararg or given.kwarg:
        raise _Wrong("run() takes named arguments alone: no *args, no **kwargs, no /", run)
    types = _Types(tree)
    properties: dict[str, object] = {}
    required: list[str] = []
    defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    for parameter, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True):
        name = parameter.arg
        if name in RESERVED:
            raise _Wrong(f"run() may not have an argument {name}: every call has one", parameter)
        if parameter.annotation is None:
            raise _Wrong(f"the argument {name} of run() has no type", parameter)
        properties[name] = types.schema(parameter.annotation)
        if default is None:
            required.append(name)
        else:
            _check_default(name, default)
    arguments: JsonSchema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if run.returns is None:
        raise _Wrong("run() does not say what type it returns", run)
    output = types.schema(run.returns)
    return arguments, None if output in (_TYPES["str"], _TYPES["None"]) else output


def _check_default(name: str, default: ast.expr) -> None:
    try:
        json.dumps(ast.literal_eval(default), allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _Wrong(f"the default of {name} must be a literal that JSON has", default) from None


class _Types:
    """Reads the closed list of types."""

    def __init__(self, tree: ast.Module) -> None:
        self._classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def schema(self, node: ast.expr, depth: int = 0) -> JsonSchema:
        """Return the schema of a type. Raises _Wrong."""
        if depth > MAX_DEPTH:
            raise _Wrong("its types are nested too deeply, or contain themselves", node)
        if isinstance(node, ast.Constant) and node.value is None:
            return _TYPES["None"]
        if isinstance(node, ast.Name | ast.Attribute):
            name = _name(node)
            if name in self._classes:
                return self._typed_dict(self._classes[name], depth)
            if name in _TYPES:
                return _TYPES[name]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return {"anyOf": [self.schema(each, depth + 1) for each in _united(node)]}
        elif isinstance(node, ast.Subscript):
            return self._generic(node, depth)
        raise _Wrong(f"{shorten(ast.unparse(node))} is no type that a flow may use: {_CLOSED}", node)

    def _generic(self, node: ast.Subscript, depth: int) -> JsonSchema:
        name = _name(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            values = [each.value for each in inner if isinstance(each, ast.Constant)]
            if len(values) == len(inner) and all(isinstance(v, str | int | None) for v in values):
                return {"enum": values}
        elif name == "list" and len(inner) == 1:
            return {"type": "array", "items": self.schema(inner[0], depth + 1)}
        elif name == "dict" and len(inner) == 2 and _name(inner[0]) == "str":
            return {"type": "object", "additionalProperties": self.schema(inner[1], depth + 1)}
        elif name in ("Optional", "Union"):
            parts: list[object] = [self.schema(each, depth + 1) for each in inner]
            return {"anyOf": [*parts, *([_TYPES["None"]] if name == "Optional" else [])]}
        raise _Wrong(f"{shorten(ast.unparse(node))} is no type that a flow may use: {_CLOSED}", node)

    def _typed_dict(self, node: ast.ClassDef, depth: int) -> JsonSchema:
        if [_name(base) for base in node.bases] != ["TypedDict"] or node.decorator_list:
            raise _Wrong(f"{node.name} is no TypedDict, and a flow may use no other class as a type", node)
        is_total = not any(
            word.arg == "total" and isinstance(word.value, ast.Constant) and word.value.value is False
            for word in node.keywords
        )
        properties: dict[str, object] = {}
        required: list[str] = []
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            annotation, is_required = field.annotation, is_total
            if isinstance(annotation, ast.Subscript) and _name(annotation.value) in _MARKS:
                is_required = _name(annotation.value) == "Required"
                annotation = annotation.slice
            properties[field.target.id] = self.schema(annotation, depth + 1)
            required += [field.target.id] if is_required else []
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


_MARKS = ("Required", "NotRequired")


def _united(node: ast.expr) -> list[ast.expr]:
    """Return the parts of `A | B | C`, in order."""
    parts: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts.append(node.right)
        node = node.left
    return [node, *reversed(parts)]


def _name(node: ast.expr) -> str:
    """Return the last name of `Name` or `typing.Name`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
