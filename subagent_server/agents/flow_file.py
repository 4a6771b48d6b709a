"""An agent as a program: `NAME.flow.py`, read by its syntax tree alone, so that listing executes nothing.

The docstring is the description, upper-case constants are the keys of an agent file, and the signature of
`run` declares which arguments the agent takes and what it returns. The whole text is the system prompt of the
definition: it is what the agent thinks by, and part of the identity of each call of it.
"""

import ast
import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from subagent_server.agents.agent_file import Origin, read_definition
from subagent_server.agents.guards import GUARDS
from subagent_server.agents.yaml_reader import (
    AgentFileError,
    Block,
    Notes,
    Unreadable,
    canonical,
    from_json,
    is_ours,
    nearest_key,
)
from subagent_server.run.agent_definition import AgentDefinition, CodeMode, JsonSchema
from subagent_server.run.errors import shorten
from subagent_server.run.schemas import first_fault

SUFFIX = ".flow.py"
MAX_CHARACTERS = 64 << 10
"""A syntax tree takes about 250 times the space of its text, and no agent file may cost more than 16 MiB."""
MAX_DEPTH = 20
"""Of a type."""
MAX_TYPES = 1_000
"""Of a whole signature: twenty classes that each name the one before twice make a million."""
RESERVED = frozenset(
    {"inputs", "label", "cwd", "waitSeconds", "wait_seconds", "key", "fresh", "on_question", "self"}
)
"""Names that mean something in every call of an agent."""
_ARGUMENT = re.compile(r"\w{1,64}", re.ASCII)
"""The names that models can use: their API refuses another one's tool, and with it the whole request."""
KEYS = frozenset(
    {
        *("agents", "limits", "mcpservers", "sandbox", "network", "sandboxlimits", "sandboxread", "env"),
        *("sandboxwrite", "cwd", "maxconcurrent", "disallowedtools", "tools", "isolation", "budgetusd"),
        *("timeoutseconds", "asktimeoutseconds", "onasktimeout", "placement"),
    }
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
    "Any": {},
}
_CLOSED = "str, int, float, bool, None, Any, list[...], dict[str, ...], Literal[...], X | Y, a TypedDict here"


class _Wrong(Exception):
    """What a flow may not contain; `node` has the line."""

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
        block.put("description", from_json(description), 1)
    definition = read_definition(block, Origin(path, path.name[: -len(SUFFIX)], text), notes)
    for key in _NOT_OF_FLOWS:
        if key in definition.lines:
            notes.fault(f"{key} cannot be kept: a flow has no model", definition.lines[key])
    update = {
        "runner": "flow",
        "program_hash": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        "code_mode": CodeMode(enabled=True),
    }
    try:
        update |= _signature(tree)
    except _Wrong as error:
        notes.fault(str(error), error.line)
    except (RecursionError, ValueError):  # nobody can write a number of 5,000 digits down
        notes.fault("its types are nested too deeply, or have a number that is too long")
    return definition.model_copy(update=update)


def _constants(tree: ast.Module, notes: Notes) -> Block:
    """Return the keys of the agent. One that is set in another way than by a literal, once, is a fault."""
    block = Block()
    values: dict[ast.AST, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=value):
                values[target] = value
    for target, name in _names_set(tree):
        line = target.lineno
        if not name.isupper():
            continue
        if canonical(name) in KEYS:
            try:
                block.put(name.lower(), from_json(_literal(values[target]), line), line)
            except (KeyError, ValueError, TypeError, SyntaxError, RecursionError, MemoryError, Unreadable):
                rule = "set once, on the first level, to a literal: the file is read, and not executed"
                notes.fault(f"{name} must be {rule}", line)
        elif target in values and (is_ours(name) or canonical(name) in GUARDS):
            notes.fault(f"{name} cannot be kept: it is no key of a flow, which has no model", line)
        elif target in values and (near := nearest_key(name)) is not None:
            notes.warn(f"{name} is a constant of the program (nearest key: {near})", line)
    return block


def _names_set(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    """Yield each name that a program sets, with its node: `A = ...`, `A[0] = ...`, `A += ...`, `import A`."""
    for node in ast.walk(tree):
        target: Any = node
        if isinstance(getattr(node, "ctx", None), ast.Store):
            while isinstance(target, ast.Subscript | ast.Attribute):
                target = target.value
            name = getattr(target, "id", None)
        else:  # of an import, a definition, an `except` or a `case`
            name = getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(name, str):
            yield target, name


# -- the signature


def _signature(tree: ast.Module) -> dict[str, Any]:
    """Return the schema of the arguments of `run`, and that of what it returns: None for a text."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = [node for node in tree.body if isinstance(node, kinds) and node.name == "run"]
    if len(found) != 1:
        raise _Wrong("a flow defines one function run(), on the first level", found[-1] if found else tree)
    run = found[0]
    if run.decorator_list:
        raise _Wrong("run() has a decorator, and nobody can read what that makes of it", run)
    args = run.args
    if args.posonlyargs or args.vararg or args.kwarg:
        raise _Wrong("run() takes named arguments alone: no *args, no **kwargs, no /", run)
    types = _Types(tree)
    properties: dict[str, object] = {}
    required: list[str] = []
    defaults = [*[None] * (len(args.args) - len(args.defaults)), *args.defaults, *args.kw_defaults]
    for parameter, default in zip([*args.args, *args.kwonlyargs], defaults, strict=True):
        name = parameter.arg
        if name in RESERVED:
            raise _Wrong(f"run() may not have an argument {name}: every call has one", parameter)
        if not _ARGUMENT.fullmatch(name):
            names = "names of at most 64 characters of a-z, A-Z, 0-9 and _"
            raise _Wrong(f"run() may not have an argument {shorten(name)}: models give {names}", parameter)
        if parameter.annotation is None:
            raise _Wrong(f"the argument {name} of run() has no type", parameter)
        properties[name] = schema = types.schema(parameter.annotation)
        if default is None:
            required.append(name)
        else:
            properties[name] = _with_default(schema, name, default)
    if run.returns is None:
        raise _Wrong("run() does not say what type it returns", run)
    output = types.schema(run.returns)
    own = {"input_schema": _object(properties, required)}
    return own | {"output_schema": None if output == _TYPES["str"] else output}


def _object(properties: dict[str, object], required: list[str]) -> dict[str, object]:
    closed = {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": [*dict.fromkeys(required)], **closed}


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal as JSON has it. Raises ValueError, TypeError, SyntaxError and others."""
    written = json.dumps(ast.literal_eval(node), allow_nan=False, ensure_ascii=False)
    return json.loads(written.encode())  # half a surrogate pair is a ValueError


def _with_default(schema: JsonSchema, name: str, node: ast.expr) -> JsonSchema:
    try:
        value = _literal(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _Wrong(f"the default of {name} must be a literal that JSON has", node) from None
    if (fault := first_fault(value, schema)) is not None:
        raise _Wrong(f"the default of {name} is not of its type: {fault}", node)
    return {**(schema if isinstance(schema, dict) else {}), "default": value}


class _Types:
    """Reads the closed list of types."""

    def __init__(self, tree: ast.Module) -> None:
        self._classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._left = MAX_TYPES

    def schema(self, node: ast.expr, depth: int = 0) -> JsonSchema:
        """Return the schema of a type. Raises _Wrong."""
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise _Wrong("its types are too many, are nested too deeply, or contain themselves", node)
        inner = partial(self.schema, depth=depth + 1)
        match node:
            case ast.Constant(value=str(quoted)):
                with suppress(SyntaxError, ValueError, MemoryError):
                    return inner(ast.increment_lineno(ast.parse(quoted, mode="eval").body, node.lineno - 1))
            case ast.Constant(value=None):
                return _TYPES["None"]
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in self._classes:
                return self._typed_dict(self._classes[name], depth)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _TYPES:
                return _TYPES[name]
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                united: Any = inner(left)
                parts = united["anyOf"] if isinstance(left, ast.BinOp) else [united]
                return {"anyOf": [*parts, inner(right)]}
            case ast.Subscript(value=generic, slice=inside):
                return self._generic(node, _name(generic), inside, depth)
        raise _no_type(node)

    def _generic(self, node: ast.expr, name: str, inside: ast.expr, depth: int) -> JsonSchema:
        match name, inside:
            case "Literal", _:
                with suppress(ValueError, TypeError):
                    found = _literal(inside)
                    values = found if isinstance(inside, ast.Tuple) else [found]
                    if values and all(value is None or isinstance(value, str | int) for value in values):
                        return {"enum": values}
            case "list", _:
                return {"type": "array", "items": self.schema(inside, depth + 1)}
            case "dict", ast.Tuple(elts=[ast.Name(id="str"), value]):
                return {"type": "object", "additionalProperties": self.schema(value, depth + 1)}
        raise _no_type(node)

    def _typed_dict(self, node: ast.ClassDef, depth: int) -> JsonSchema:
        properties: dict[str, object] = {}
        required: list[str] = []
        parents = [base for base in node.bases if _name(base) != "TypedDict"]
        if node.decorator_list or not node.bases or {*map(_name, parents)} - self._classes.keys():
            raise _Wrong(f"{node.name} is no TypedDict, and a flow may use no other class as a type", node)
        for parent in parents:
            inherited: Any = self.schema(parent, depth + 1)
            properties |= inherited["properties"]
            required += inherited["required"]
        is_total = "total=False" not in map(ast.unparse, node.keywords)
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            annotation, is_required = field.annotation, is_total
            if isinstance(annotation, ast.Subscript) and _name(annotation.value) in _MARKS:
                is_required = _name(annotation.value) == "Required"
                annotation = annotation.slice
            properties[field.target.id] = self.schema(annotation, depth + 1)
            required += [field.target.id] if is_required else []
        return _object(properties, required)


_MARKS = ("Required", "NotRequired")


def _no_type(node: ast.expr) -> _Wrong:
    return _Wrong(f"{shorten(ast.unparse(node))} is no type that a flow may use: {_CLOSED}", node)


def _name(node: ast.expr) -> str:
    """Return the last name of `Name` or `typing.Name`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
