"""Types of Python for the values that a JSON Schema allows. Pure.

A type allows at least the values that its schema allows: the server judges the rest. Types that Python cannot
express are `Any`, with the reason.
"""

import keyword
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.extensions.code_mode.python_text import (
    STUB_NAMES,
    as_comment,
    default_of,
    facts_of,
    type_name,
)
from subagent_server.toolbox.mcp.input_schemas import DEAD_REFERENCE, free_name, resolved


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of the values that both schemas allow, or of more."""
    both = {**other, **one}
    properties = dict(mapping_in(one, "properties"))
    for key, schema in mapping_in(other, "properties").items():
        known = properties.setdefault(key, schema)
        if known != schema:
            properties[key] = {"allOf": [known, schema]}
    if properties:
        both["properties"] = properties
    required = [*list_in(one, "required"), *list_in(other, "required")]
    both["required"] = list(dict.fromkeys(key for key in required if isinstance(key, str)))
    if "items" in one and "items" in other and one["items"] != other["items"]:
        both["items"] = {"allOf": [one["items"], other["items"]]}
    if "enum" in one and "enum" in other:
        allowed = set(map(repr, list_in(other, "enum")))
        both["enum"] = [value for value in list_in(one, "enum") if repr(value) in allowed]
    if "type" in one and "type" in other:
        both["type"] = _common_types(set(types_of(one)), set(types_of(other)))
    return both


def _common_types(one: set[str], other: set[str]) -> list[str]:
    whole = {"integer"} if "integer" in one ^ other and "number" in one ^ other else set()
    return sorted((one & other) | whole)


def kinds_of(value: Any) -> list[str]:
    """Return the JSON types of a value, the narrowest first."""
    if isinstance(value, bool):
        return ["boolean"]
    if isinstance(value, int):
        return ["integer", "number"]
    kinds = {str: "string", float: "number", list: "array", dict: "object"}
    return [kinds.get(type(value), "null")]


def types_of(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type")
    if isinstance(types, str | list):
        return [types] if isinstance(types, str) else [each for each in types if isinstance(each, str)]
    if "properties" in schema or "additionalProperties" in schema or "patternProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def mapping_in(schema: dict[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def list_in(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


# -- types as text


MAX_LITERALS = 200
MAX_LITERAL_CHARACTERS = 4_000
_MOST_SHOWN = 5
Field = tuple[str, str, str]
"""A key of a `TypedDict`, its annotation, and the comment behind it."""
_BY_KIND = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list[Any]",
    "object": "dict[str, Any]",
}


@dataclass(frozen=True)
class PythonType:
    """A type as the members of its union. `early` are those that are names of types not defined yet."""

    members: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    early: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The type as an expression."""
        literal = [f"Literal[{', '.join(self.literals)}]"] if self.literals else []
        nothing = ["None"] if "None" in self.members else []
        return " | ".join([*literal, *(each for each in self.members if each != "None"), *nothing])

    def within(self, form: str) -> "PythonType":
        """Return the type `form`, with this one instead of `{}`."""
        return PythonType((form.format(self.annotation()),), (), self.reasons)

    def without(self, name: str) -> "PythonType":
        """Return the type without one member."""
        members, early = (
            tuple(each for each in names if each != name) for names in (self.members, self.early)
        )
        return PythonType(members, self.literals, self.reasons, early)

    def annotation(self) -> str:
        """Return the expression for a position where a type that comes later must be quoted."""
        return repr(self.text) if self.early else self.text

    def takes(self, value: Any) -> bool:
        """Whether a plain value is of this type, as far as its text shows."""
        if "Any" in self.members or repr(value) in self.literals:
            return True
        kinds = {"NoneType": {"None"}, "int": {"int", "float"}}.get(
            type(value).__name__, {type(value).__name__}
        )
        return not kinds.isdisjoint(self.members)


ANYTHING = PythonType(("Any",))


def unknown(reason: str) -> PythonType:
    """Return `Any`, with the reason."""
    return PythonType(("Any",), reasons=(reason,))


def union(types: Iterable[PythonType]) -> PythonType:
    """Return the type of values that are of one of these types."""
    every = list(types)
    reasons = tuple(dict.fromkeys(reason for each in every for reason in each.reasons))
    members = tuple(dict.fromkeys(member for each in every for member in each.members))
    if "Any" in members:
        return PythonType(("Any",), reasons=reasons)
    literals = tuple(dict.fromkeys(literal for each in every for literal in each.literals))
    early = tuple(dict.fromkeys(name for each in every for name in each.early))
    return PythonType(members, literals, reasons, early)


def literal(values: Sequence[Any]) -> PythonType:
    """Return the type of these values."""
    if not values:
        return unknown("no value is valid here")
    plain = [value for value in values if value is None or isinstance(value, str | int)]
    literals = tuple(dict.fromkeys(repr(value) for value in plain if value is not None))
    size = sum(map(len, literals))
    if len(plain) == len(values) and len(literals) <= MAX_LITERALS and size <= MAX_LITERAL_CHARACTERS:
        return PythonType(("None",) if None in plain else (), literals)
    kinds = union(PythonType((_BY_KIND[kind],)) for value in values for kind in kinds_of(value)[:1])
    shown = ", ".join(map(repr, values[:_MOST_SHOWN]))
    more = f" and {len(values) - _MOST_SHOWN} more" if len(values) > _MOST_SHOWN else ""
    return union([kinds, PythonType(reasons=(f"one of {shown}{more}",))])


def typed_dict(name: str, fields: Sequence[Field], about: str, *, as_class: bool) -> str:
    """Return the definition of a `TypedDict`, with a comment `about` it.

    As a class it reads better; keys that are no names of Python need the other form.
    """
    if as_class:
        lines = [f"    {key}: {annotation}{comment}\n" for key, annotation, comment in fields]
        return f"class {name}(TypedDict):{about}\n{''.join(lines)}"
    lines = [f"    {key!r}: {annotation},{comment}\n" for key, annotation, comment in fields]
    return f'{name} = TypedDict("{name}", {{{about}\n{"".join(lines)}}})\n'


# -- types of schemas


MAX_DEPTH = 16
MAX_PARTS = 2_000
_LONG = ("enum", "properties", "required")
_A_PART = 100
"""Joining so many values, properties or names costs about as much as reading another part."""
_SHAPES = frozenset(
    {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "items", "prefixItems"}
    | {"properties", "additionalProperties", "patternProperties"}
)
"""Keywords for what a value looks like; all others only bound it."""
_RULES = frozenset({"not", "if", "contains", "dependentSchemas", "dependentRequired", "propertyNames"})
"""Keywords that bound values in a way that a caller should know of."""


class TypeWriter:
    """Writes the types of one schema.

    `taken` are the names that its namespace has, and it adds its own. Results have no tuples: what comes from
    JSON are lists.
    """

    def __init__(self, root: dict[str, Any], taken: set[str], *, of_results: bool = False) -> None:
        self._root = root
        self._defined: list[str] = []
        self._defined_last: list[str] = []
        self._taken = taken
        self._of_results = of_results
        self._parts = 0
        self._references: dict[str, PythonType | None] = {}
        self._aliases: dict[str, str] = {}
        """The names of references that contain themselves and are no class, which would have its name."""
        self._by_fields: dict[tuple[Field, ...], str] = {}

    @property
    def definitions(self) -> list[str]:
        """The named types; each comes after the types that its definition uses."""
        return [*self._defined, *reversed(self._defined_last)]

    def comment(self, schema: Any, found: PythonType, *, shows_default: bool = False) -> str:
        """Return the comment behind a value of this schema and type."""
        if not isinstance(schema, dict):
            return as_comment(found.reasons)
        default = [] if shows_default else default_of(schema)
        return as_comment([*facts_of(schema), *default, *found.reasons])

    def type_of(self, schema: Any, name: str, depth: int = 0, reference: str = "") -> PythonType:
        """Return the type of a schema; `name` is that of the type, if it needs one.

        `reference` is the one that has led here, for types that contain themselves.
        """
        if not isinstance(schema, dict):
            return ANYTHING if schema is not False else unknown("no value is valid here")
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            return unknown("the schema is too deep" if depth > MAX_DEPTH else "the schema is too large")
        whole = self._whole(schema, depth)
        if isinstance(target := whole.get("$ref"), str):
            return self._referenced(target, depth)
        choice = next((key for key in ("anyOf", "oneOf") if list_in(whole, key)), None)
        if whole.get("type") == []:
            return unknown("no value is of all the types")
        if "const" in whole:
            found = literal([whole["const"]])
        elif "enum" in whole:
            found = self._one_of(whole)
        elif choice:
            found = self._chosen(whole, choice, name, depth, reference)
        else:
            found = self._by_kinds(whole, name, depth, reference)
        return union([found, PythonType(("None",))]) if whole.get("nullable") is True else found

    # -- references and combinations

    def _referenced(self, target: str, depth: int) -> PythonType:
        name = type_name(target.rpartition("/")[2] or "Root")
        if target in self._references:
            known = self._references[target]
            return known if known is not None else self._early_alias(target, name)
        self._references[target] = None
        schema = resolved(target, self._root)
        if isinstance(schema, dict | bool):
            found = self.type_of(schema, name, depth + 1, target)
        else:
            found = unknown(DEAD_REFERENCE)
        if target in self._aliases:
            found = self._alias(self._aliases[target], schema, found)
        self._references[target] = found
        return found

    def _early_alias(self, target: str, name: str) -> PythonType:
        """Return the name of a type within itself, which is defined when all of it is known."""
        self._aliases[target] = name = self._new_name(name)
        early = self._references[target] = PythonType((name,), early=(name,))
        return early

    def _alias(self, name: str, schema: Any, found: PythonType) -> PythonType:
        """Define the name of a type that contains itself, and return the type.

        In a choice, the type itself adds nothing. A type that needs another one before it is defined last,
        and is written out wherever it is not quoted. Without `TypeAlias`, mypy takes a name for a variable
        that `TypedDict(...)` uses before it is defined.
        """
        whole = found.without(name)
        if not whole.text:
            whole = unknown("a type that is nothing but itself")
        text = f"{name}: TypeAlias = {whole.text}{self.comment(schema, whole)}\n"
        if whole.early:
            self._defined_last.append(text)
            return whole
        self._defined.append(text)
        return PythonType((name,))

    def _whole(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """Return a schema with the parts of its `allOf` joined, and a reference alone or not at all."""
        parts = [part for part in list_in(schema, "allOf") if isinstance(part, dict)]
        whole = {key: value for key, value in schema.items() if key != "allOf"}
        if "$ref" in whole and (parts or not _SHAPES.isdisjoint(whole.keys() - {"$ref"})):
            parts.append({"$ref": whole.pop("$ref")})
        if len(parts) == 1 and _SHAPES.isdisjoint(whole):
            return self._whole(parts[0], depth + 1) if self._may_go_on(depth) else {}
        for part in parts:
            if self._may_go_on(depth):
                whole = joined(whole, self._followed(part, depth + 1))
        return whole

    def _followed(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """Return a schema as `_whole` does, with no reference left."""
        whole = self._whole(schema, depth)
        while isinstance(target := whole.get("$ref"), str):
            found = resolved(target, self._root)
            if not isinstance(found, dict) or not self._may_go_on(depth := depth + 1):
                return {}
            whole = self._whole(found, depth)
        self._parts += sum(len(whole.get(key) or ()) for key in _LONG) // _A_PART
        return whole

    def _may_go_on(self, depth: int) -> bool:
        self._parts += 1
        return depth <= MAX_DEPTH and self._parts <= MAX_PARTS

    def _chosen(
        self, whole: dict[str, Any], choice: str, name: str, depth: int, reference: str
    ) -> PythonType:
        """Return the type of a choice: of each branch, together with the keywords next to the choice."""
        siblings = {key: value for key, value in whole.items() if key not in ("anyOf", "oneOf")}
        has_shape = not _SHAPES.isdisjoint(siblings)
        found: list[PythonType] = []
        for branch in whole[choice]:
            if has_shape and isinstance(branch, dict):
                if _SHAPES.isdisjoint(branch):  # it only bounds what is next to it
                    return self.type_of(siblings, name, depth + 1, reference)
                branch = joined(siblings, self._followed(branch, depth + 1))
            found.append(self.type_of(branch, name, depth + 1))
        return union(found)

    def _one_of(self, whole: dict[str, Any]) -> PythonType:
        values = list_in(whole, "enum")
        kinds = set(types_of(whole))
        fitting = [value for value in values if not kinds or not kinds.isdisjoint(kinds_of(value))]
        return literal(fitting or values)

    # -- one type

    def _by_kinds(self, whole: dict[str, Any], name: str, depth: int, reference: str) -> PythonType:
        if kinds := types_of(whole):
            return union([self._of(kind, whole, name, depth, reference) for kind in kinds])
        if whole.get("$comment") == DEAD_REFERENCE:
            return unknown(DEAD_REFERENCE)
        return ANYTHING if _RULES.isdisjoint(whole) else unknown("a rule that no type expresses")

    def _of(self, kind: str, whole: dict[str, Any], name: str, depth: int, reference: str) -> PythonType:
        if kind == "array":
            return self._array(whole, name, depth)
        if kind == "object":
            return self._object(whole, name, depth, reference)
        return PythonType((_BY_KIND[kind],)) if kind in _BY_KIND else ANYTHING

    def _array(self, whole: dict[str, Any], name: str, depth: int) -> PythonType:
        items = list_in(whole, "prefixItems")
        if not items:
            return self.type_of(whole.get("items", True), name, depth + 1).within("list[{}]")
        types = [self.type_of(item, name, depth + 1) for item in items]
        has_rest = whole.get("items") is not False and whole.get("maxItems") != len(items)
        rest = [self.type_of(whole.get("items", True), name, depth + 1)] if has_rest else []
        every = union([*types, *rest])
        listed = every.within("list[{}]")
        if self._of_results or has_rest or whole.get("minItems") != len(items):
            return listed
        exact = f"tuple[{', '.join(each.annotation() for each in types)}]"
        return union([PythonType((exact,), (), every.reasons), listed])

    def _object(self, whole: dict[str, Any], name: str, depth: int, reference: str) -> PythonType:
        properties = mapping_in(whole, "properties")
        if not properties:
            return self.others(whole, name, depth).within("dict[str, {}]")
        found = PythonType((self._typed_dict(whole, properties, name, depth, reference),))
        return union([found, PythonType(("dict[str, Any]",))]) if _is_open(whole) else found

    def others(self, whole: dict[str, Any], name: str, depth: int = 0) -> PythonType:
        """Return the type of the properties that an object has besides those that its schema names."""
        more = whole.get("additionalProperties")
        patterns = list(mapping_in(whole, "patternProperties").values())
        values = [*patterns, *([more] if isinstance(more, dict) else [])] or [True]
        return union([self.type_of(each, name, depth + 1) for each in values])

    def _typed_dict(
        self, whole: dict[str, Any], properties: dict[str, Any], name: str, depth: int, reference: str
    ) -> str:
        """Define a `TypedDict` and return its name; one that is defined already has its name."""
        name = self._new_name(name)
        if reference and _is_one_class(whole):
            self._references[reference] = PythonType((name,), early=(name,))
        required = {key for key in list_in(whole, "required") if isinstance(key, str)}
        fields: list[Field] = []
        for key, schema in properties.items():
            found = self.type_of(schema, type_name(name, key), depth + 1)
            shown = found if key in required else found.within("NotRequired[{}]")
            fields.append((key, shown.annotation(), self.comment(schema, found)))
        known = self._by_fields.setdefault(tuple(fields), name)
        if known != name and not reference:
            self._taken.discard(name)
            return known
        about = as_comment([str(whole.get("description") or "")]) if reference else ""
        as_class = all(map(self._is_field, properties))
        self._defined.append(typed_dict(name, fields, about, as_class=as_class))
        return name

    def _is_field(self, key: str) -> bool:
        """Whether a key can be in the body of a class."""
        plain = key.isidentifier() and not keyword.iskeyword(key) and not key.startswith("__")
        is_free = key not in self._taken and key not in STUB_NAMES
        return plain and is_free and unicodedata.normalize("NFKC", key) == key

    def _new_name(self, name: str) -> str:
        free = free_name(name, self._taken, mark="")
        self._taken.add(free)
        return free


def _is_open(whole: dict[str, Any]) -> bool:
    """Whether an object may have properties that the schema does not name, by a rule of the schema."""
    return whole.get("additionalProperties") not in (None, False) or "patternProperties" in whole


def _is_one_class(whole: dict[str, Any]) -> bool:
    """Whether the objects with these properties are all that the schema allows."""
    return len(types_of(whole)) == 1 and whole.get("nullable") is not True and not _is_open(whole)
