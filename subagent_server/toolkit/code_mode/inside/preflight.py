"""Check the code of a program before any of it runs: calls may have effects, so early errors matter.

Only a certain mistake is a fault. A name that the code itself defines is not checked anywhere.
"""

from __future__ import annotations

import _ast
import builtins

from subagent_server.toolkit.code_mode.inside.functions import Namespace, Tool, unknown_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Misfits = Callable[[list[tuple[str, dict[str, Any]]]], list[list[Any]]]

_DYNAMIC = {"exec", "eval", "globals", "locals", "vars", "__import__"}


def _walk(tree: Any) -> Iterator[Any]:
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for field in node._fields:
            value = getattr(node, field, None)
            todo += [
                each for each in (value if isinstance(value, list) else [value]) if isinstance(each, _ast.AST)
            ]


def _kind(node: Any) -> str:
    return type(node).__name__


def _bound(nodes: list[Any]) -> set[str]:
    """Return all names that the code gives a meaning of its own, wherever it does."""
    names: set[str] = set()
    for node in nodes:
        if _kind(node) == "Name" and _kind(node.ctx) != "Load":
            names.add(node.id)
        elif _kind(node) not in ("keyword", "Name"):
            given = [getattr(node, field, None) for field in ("name", "asname", "arg", "rest")]
            names.update(name.partition(".")[0] for name in given if isinstance(name, str))
    return names


def faults_of(tree: Any, names: dict[str, Any], misfits: Misfits) -> list[tuple[int, str]]:
    """Return the calls that cannot go well, by their lines, as far as this is sure without running them.

    `misfits` says which calls have literal arguments of a wrong kind.
    """
    nodes = list(_walk(tree))
    bound = _bound(nodes)
    known = {name: value for name, value in names.items() if name not in bound}
    used = {node.id for node in nodes if _kind(node) == "Name"}
    is_open = "*" in bound or not _DYNAMIC.isdisjoint(used)
    found = []
    for node in nodes:
        fault = _fault_of(node, known, None if is_open else bound)
        if fault is not None:
            found.append((node.lineno, fault))
    return sorted(set(found or _wrong_literals(nodes, known, misfits)))


def _wrong_literals(nodes: list[Any], known: dict[str, Any], misfits: Misfits) -> list[tuple[int, str]]:
    try:
        calls = list(_literal_calls(nodes, known))
        wrong = misfits([(name, given) for _, name, given in calls]) if calls else []
        return [(calls[place][0], fault) for place, fault in wrong]
    except Exception:  # noqa: BLE001 - literals too deep or too large to be judged: the call itself will show
        return []


def _literal_calls(nodes: list[Any], known: dict[str, Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the calls of tools with literal arguments: line, name, and these arguments alone."""
    for node in nodes:
        tool = _meant(node.func, known) if _kind(node) == "Call" else None
        if tool is not None:
            values = [(each.arg, _literal(each.value)) for each in node.keywords if each.arg is not None]
            given = {name: value[0] for name, value in values if value}
            if given:
                yield node.lineno, tool.__name__, given


def _literal(node: Any) -> list[Any]:
    """Return the value of a literal that JSON can express, in a list; an empty list for all else."""
    kind = _kind(node)
    if kind == "Constant":
        plain = isinstance(node.value, (str, int, type(None)))
        return [node.value] if plain or _is_finite(node.value) else []
    if kind == "UnaryOp" and _kind(node.op) == "USub" and _kind(node.operand) == "Constant":
        value = node.operand.value
        return [-value] if _is_finite(value) else []
    if kind in ("List", "Tuple"):
        values = [_literal(each) for each in node.elts]
        return [[value[0] for value in values]] if all(values) else []
    if kind == "Dict":
        pairs = [(_literal(key), _literal(node.values[place])) for place, key in enumerate(node.keys)]
        if all(key and value and isinstance(key[0], str) for key, value in pairs):
            return [{key[0]: value[0] for key, value in pairs}]
    return []


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def _fault_of(node: Any, known: dict[str, Any], bound: set[str] | None) -> str | None:
    kind = _kind(node)
    if kind == "Attribute" and _kind(node.value) == "Name":
        space = known.get(node.value.id)
        if not isinstance(space, Namespace) or hasattr(type(space), node.attr) or node.attr in vars(space):
            return None
        return unknown_tool(space, node.attr)
    if kind == "Await" and _kind(node.value) == "Call":
        tool = _meant(node.value.func, known)
        return f"{tool.__name__}() is no coroutine: call it without `await`" if tool is not None else None
    if kind != "Call":
        return None
    tool = _meant(node.func, known)
    if tool is not None:
        given = [each.arg for each in node.keywords if each.arg is not None]
        partial = len(given) < len(node.keywords)
        return tool.fault(bool(node.args), given, partial=partial)
    if _kind(node.func) == "Name" and bound is not None:
        name = node.func.id
        is_known = name in bound or name in known or hasattr(builtins, name)
        return None if is_known else f"there is no function {name}()"
    return None


def _meant(function: Any, known: dict[str, Any]) -> Tool | None:
    """Return the tool that an expression names, or None."""
    found = None
    if _kind(function) == "Name":
        found = known.get(function.id)
    elif _kind(function) == "Attribute" and _kind(function.value) == "Name":
        space = known.get(function.value.id)
        found = vars(space).get(function.attr) if isinstance(space, Namespace) else None
    return found if isinstance(found, Tool) else None


def is_entry(tree: Any) -> bool:
    """Whether the code defines `run()`, without arguments, and leaves it to us to call it."""
    last = [
        node
        for node in tree.body
        if _kind(node) in ("FunctionDef", "AsyncFunctionDef") and node.name == "run"
    ]
    if not last:
        return False
    arguments = last[-1].args
    needed = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    needed += sum(default is None for default in arguments.kw_defaults)
    others = [
        node for node in tree.body if _kind(node) not in ("FunctionDef", "AsyncFunctionDef", "ClassDef")
    ]
    called = any(_kind(node) == "Name" and node.id == "run" for each in others for node in _walk(each))
    return needed == 0 and not called
