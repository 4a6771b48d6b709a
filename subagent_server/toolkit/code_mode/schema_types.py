"""Types for the values that a JSON Schema allows. Pure.

A type allows at least the values that its schema allows: the server judges the rest. Types that Python cannot
express are `Any`, with the reason.
"""

import keyword
import unicodedata
from typing import Any

from subagent_server.toolkit.code_mode import words
from subagent_server.toolkit.code_mode.names import STUB_NAMES, type_name
from subagent_server.toolkit.code_mode.python_types import (
    ANYTHING,
    Field,
    PythonType,
    literal,
    typed_dict,
    union,
    unknown,
)
from subagent_server.toolkit.code_mode.schema_parts import joined, kinds_of, list_in, mapping_in, types_of
from subagent_server.toolkit.mcp_servers.schema_repair import DEAD_REFERENCE, resolved

MAX_DEPTH = 16
MAX_PARTS = 2_000
_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_LONG = ("enum", "properties", "required")
_A_PART = 100
"""Joining so many values, properties or names costs about as much as reading another part."""
_SHAPES = frozenset(
    {
        "type",
        "properties",
        "items",
        "prefixItems",
        "enum",
        "const",
        "additionalProperties",
        "patternProperties",
    }
    | {"anyOf", "oneOf", "allOf", "$ref"}
)
"""Keywords that say what a value looks like; all others only bound it."""
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
        """The named types; each stands after the types that its definition uses."""
        return [*self._defined, *reversed(self._defined_last)]

    def comment(self, schema: Any, found: PythonType, *, shows_default: bool = False) -> str:
        """Return the comment behind a value of this schema and type."""
        if not isinstance(schema, dict):
            return words.comment(found.reasons)
        default = [] if shows_default else words.default(schema)
        return words.comment([*words.facts(schema), *default, *found.reasons])

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
        and is written out wherever it is not quoted.
        """
        whole = found.without(name)
        if not whole.text:
            whole = unknown("a type that is nothing but itself")
        text = f"{name} = {whole.text}{self.comment(schema, whole)}\n"
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
        """Return the type of a choice: of each branch, together with what stands beside the choice."""
        beside = {key: value for key, value in whole.items() if key not in ("anyOf", "oneOf")}
        has_shape = not _SHAPES.isdisjoint(beside)
        found: list[PythonType] = []
        for branch in whole[choice]:
            if has_shape and isinstance(branch, dict):
                if _SHAPES.isdisjoint(branch):  # it only bounds what stands beside it
                    return self.type_of(beside, name, depth + 1, reference)
                branch = joined(beside, self._followed(branch, depth + 1))
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
        if kind in _SIMPLE:
            return PythonType((_SIMPLE[kind],))
        if kind == "array":
            return self._array(whole, name, depth)
        if kind == "object":
            return self._object(whole, name, depth, reference)
        return ANYTHING

    def _array(self, whole: dict[str, Any], name: str, depth: int) -> PythonType:
        places = list_in(whole, "prefixItems")
        if not places:
            return self.type_of(whole.get("items", True), name, depth + 1).within("list[{}]")
        types = [self.type_of(place, name, depth + 1) for place in places]
        has_rest = whole.get("items") is not False and whole.get("maxItems") != len(places)
        rest = [self.type_of(whole.get("items", True), name, depth + 1)] if has_rest else []
        every = union([*types, *rest])
        listed = every.within("list[{}]")
        if self._of_results or has_rest or whole.get("minItems") != len(places):
            return listed
        exact = f"tuple[{', '.join(each.annotation() for each in types)}]"
        return union([PythonType((exact,), (), every.reasons), listed])

    def _object(self, whole: dict[str, Any], name: str, depth: int, reference: str) -> PythonType:
        properties = mapping_in(whole, "properties")
        if not properties:
            more = whole.get("additionalProperties")
            patterns = list(mapping_in(whole, "patternProperties").values())
            values = [*patterns, *([more] if isinstance(more, dict) else [])] or [True]
            return union([self.type_of(each, name, depth + 1) for each in values]).within("dict[str, {}]")
        found = PythonType((self._typed_dict(whole, properties, name, depth, reference),))
        return union([found, PythonType(("dict[str, Any]",))]) if _is_open(whole) else found

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
        about = words.comment([str(whole.get("description") or "")]) if reference else ""
        as_class = all(map(self._is_field, properties))
        self._defined.append(typed_dict(name, fields, about, as_class=as_class))
        return name

    def _is_field(self, key: str) -> bool:
        """Whether a key can stand in the body of a class."""
        plain = key.isidentifier() and not keyword.iskeyword(key) and not key.startswith("__")
        is_free = key not in self._taken and key not in STUB_NAMES
        return plain and is_free and unicodedata.normalize("NFKC", key) == key

    def _new_name(self, name: str) -> str:
        number, free = 1, name
        while free in self._taken:
            number += 1
            free = f"{name}{number}"
        self._taken.add(free)
        return free


def _is_open(whole: dict[str, Any]) -> bool:
    """Whether an object may have properties that the schema does not name, by a rule of the schema."""
    return whole.get("additionalProperties") not in (None, False) or "patternProperties" in whole


def _is_one_class(whole: dict[str, Any]) -> bool:
    """Whether the objects with these properties are all that the schema allows."""
    return len(types_of(whole)) == 1 and whole.get("nullable") is not True and not _is_open(whole)
