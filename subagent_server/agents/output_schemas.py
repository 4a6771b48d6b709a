"""The schema of an agent's structured result, inline or in a file: JSON Schema of drafts 4 to 2020-12.

Anybody's agent file is read by everybody's listing, so reading a schema costs at most a tenth of a second:
one with too many values, or patterns too costly to compile, is refused. Nothing is ever looked up for a
reference: a schema contains what it needs.
"""

import json
import math
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin

from subagent_server.agents.known_names import nearest
from subagent_server.agents.yaml_reader import Json, Plain, Unreadable, Value, as_json, read_text, shown
from subagent_server.run.agent_definition import JsonSchema
from subagent_server.run.errors import shorten
from subagent_server.run.schemas import compiled, validator_name

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from referencing import Resource, Specification
    from referencing._core import Resolver

MAX_CHARACTERS = 256 << 10
MAX_VALUES = 4_000
"""Texts, numbers, lists and objects in a schema. Judging as many takes less than 0.1 s of a processor."""
MAX_DEPTH = 60
MAX_PATTERN = 1_000
MAX_COSTLY_PATTERN = 40
"""Characters. `[\\u0100-\\uffff]` takes 250 times as long to compile as another one of that length, and three
times that where upper and lower case are one."""
PATTERN_SECONDS = 0.02
"""Of a processor, for compiling all patterns of a schema; 200 ordinary ones take a tenth of it."""

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[uUxN]")
_META_SCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
_REFERENCE_ALONE = ("Draft4Validator", "Draft6Validator", "Draft7Validator")
"""In these drafts nothing counts next to a `$ref`."""
_DRAFTS = "those of the drafts 4, 6, 7, 2019-09 and 2020-12"


class BadSchema(Exception):
    """Why something cannot be an output schema; the message goes after the key's name."""


def inline_schema(value: Value) -> JsonSchema:
    """Return the schema that is in the agent file itself, as YAML or as JSON text.

    Raises:
        BadSchema: it is not a JSON Schema that some result can fit, or too costly to judge.
    """
    content = str(value) if isinstance(value, str) and not isinstance(value, Plain) else as_json(value)
    if isinstance(content, str) and content.lstrip().startswith("{"):
        content = _parsed(content, "")
    if isinstance(content, str):
        raise BadSchema("must be a JSON Schema: add Path to the key to name a file with one")
    return _checked(content, "")


def schema_file(path: Path) -> JsonSchema:
    """Return the schema in a JSON file.

    Raises:
        BadSchema: the file cannot be read, is not JSON, or as for `inline_schema`.
    """
    where = f"{shown(path)}: "
    try:
        return _checked(_parsed(read_text(path), where), where)
    except Unreadable as error:
        raise BadSchema(where + error.reason) from error


def _parsed(text: str, where: str) -> Json:
    if len(text) > MAX_CHARACTERS:
        raise BadSchema(f"{where}it has more than {MAX_CHARACTERS >> 10} Ki characters, so make it smaller")
    try:
        content: Json = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise BadSchema(f"{where}it is not JSON (line {error.lineno}: {error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"{where}it is not JSON that can be used ({error})") from error
    return content


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _checked(content: Json, where: str) -> JsonSchema:
    if not isinstance(content, dict | bool):
        raise BadSchema(f"{where}a schema is an object, true or false")
    try:
        _check_size(content)
        if (draft := validator_name(content)) is None:
            raise _unknown_draft(content)
        targets = _check_form_and_references(content, draft)
        if (reason := _Contradictions(targets, draft).of((content, "its root"))) is not None:
            raise BadSchema(f"no result fits, because {reason}")
    except BadSchema as error:
        raise BadSchema(f"{where}{error}") from error
    return dict(content) if isinstance(content, dict) else content


def _check_size(content: Json) -> None:
    """Bound values and depth, without recursion, and refuse text that cannot be written down."""
    count, todo = 0, [(content, 0)]
    while todo:
        node, depth = todo.pop()
        children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
        count += 1 + len(children)
        if count > 2 * MAX_VALUES:  # each but the root is counted as a child as well
            raise BadSchema(f"it has more than {MAX_VALUES:,} values, so make it smaller")
        if depth > MAX_DEPTH:
            raise BadSchema(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(node, float) and not math.isfinite(node):
            raise BadSchema("it has a number that is too large to be one")
        todo += [(child, depth + 1) for child in children]
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadSchema("it holds text that cannot be written down") from error


# -- the form of a schema, and its references


def _check_form_and_references(content: dict[str, Any] | bool, draft: str) -> dict[int, Any]:
    """Return the target of the `$ref` of each schema in `content`, by the identity of that schema.

    Raises:
        BadSchema: a schema is not well-formed by its draft, or a reference leads nowhere.
    """
    # Imported here: it takes a twentieth of a second, and most agents have no schema.
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    judge = _judge(draft)
    judged = judge.kind(judge.meta, format_checker=_Patterns())
    _check_form(judged, judge.draft, content)
    targets: dict[int, Any] = {}
    walked: set[int] = set()
    reference = "$id"
    try:
        root = judge.dialect.create_resource(content)
        uri = root.id() or ""
        todo = list(_references(root, REGISTRY.with_resource(uri, root).crawl().resolver(uri), walked))
        while todo:
            schema, key, reference, resolver = todo.pop()
            found = resolver.lookup(reference)
            if key == "$ref":
                targets[id(schema)] = found.contents
            if not reference.startswith(_META_SCHEMAS) and id(found.contents) not in walked:
                # It is where no schema is expected, so it has not been looked at.
                _check_form(judged, judge.draft, found.contents)
                todo += _references(judge.dialect.create_resource(found.contents), found.resolver, walked)
    except (Unresolvable, ValueError) as error:
        message = f"the reference {shorten(reference)} leads nowhere: put what it means under $defs"
        raise BadSchema(message) from error
    except AttributeError as error:  # the library then takes a list of names for a schema
        raise BadSchema(
            "its dependencies mix schemas and lists of names: write {required: [...]} for the lists"
        ) from error
    return targets


_Reference = tuple[dict[str, Any], str, str, "Resolver[Any]"]
"""The schema that has it, its key, itself, and the base that it is relative to."""


def _references(start: "Resource[Any]", resolver: "Resolver[Any]", walked: set[int]) -> Iterator[_Reference]:
    """Yield the references of a schema and of those below it, without those that were walked before."""
    todo = [(start, resolver)]
    while todo:
        resource, resolver = todo.pop()
        schema = resource.contents
        if not isinstance(schema, dict) or id(schema) in walked:
            continue
        walked.add(id(schema))
        if validator_name(schema) is None:
            raise _unknown_draft(schema)
        todo += [(below, resolver.in_subresource(below)) for below in resource.subresources()]
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(target := schema.get(key), str):
                yield schema, key, target, resolver


def _unknown_draft(schema: Any) -> BadSchema:
    return BadSchema(f"its $schema {shorten(str(schema['$schema']))} is not known: {_DRAFTS} are")


def _check_form(judge: Any, draft: str, schema: Any) -> None:
    """Raise BadSchema where a schema is not well-formed by the draft of the root."""
    from jsonschema.exceptions import best_match

    with warnings.catch_warnings():  # of patterns that may mean something else one day
        warnings.simplefilter("ignore")
        error = best_match(islice(judge.iter_errors(schema), 1))
    if error is not None:
        at = "/".join(str(step) for step in error.absolute_path) or "its root"
        message = shorten(error.message, 160)
        raise BadSchema(f"it is not a JSON Schema {draft} (at {at}: {message})")


class _Judge(NamedTuple):
    """What judges the form of schemas of a draft."""

    draft: str
    kind: Any
    meta: Mapping[str, Any]
    dialect: "Specification[Any]"


@cache
def _judge(name: str) -> _Judge:
    """Return the judge for the class of validators of this name.

    The meta-schemas of 2019-09 and 2020-12 are spread over documents with dynamic references: judging by the
    same rules in one document is six times as fast.
    """
    import jsonschema
    from jsonschema.validators import extend
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import specification_with

    kind = getattr(jsonschema, name)
    meta = kind.META_SCHEMA
    uri = meta.get("$id") or meta["id"]
    whole: dict[str, Any] = {"type": meta.get("type", "object")}
    for part in (*(REGISTRY.contents(urljoin(uri, each["$ref"])) for each in meta.get("allOf", [])), meta):
        for key in ("properties", "$defs", "definitions", "dependencies"):
            whole[key] = {**whole.get(key, {}), **part.get(key, {})}
    text = re.sub(r'"\$(?:dynamicRef|recursiveRef)": "#(?:meta)?"', '"$ref": "#"', json.dumps(whole))
    whole = json.loads(re.sub(r'"meta/[\w-]+#', '"#', text))
    # Only the meta-schema of draft 4 does not require that these names are patterns.
    whole["properties"]["patternProperties"]["propertyNames"] = {"format": "regex"}
    rules = {
        "propertyNames": jsonschema.Draft6Validator.VALIDATORS["propertyNames"],
        # That of the library compares each item with each where they cannot be sorted.
        "uniqueItems": _unique_items,
    }
    kind = extend(kind, rules)  # type: ignore[no-untyped-call]
    draft = uri.removesuffix("#").removesuffix("/schema").rpartition("draft")[2].strip("-/")
    return _Judge(draft, kind, whole, specification_with(uri))


def _unique_items(_: Any, is_wanted: Any, value: Any, __: Any) -> Iterator["ValidationError"]:
    from jsonschema.exceptions import ValidationError

    if not is_wanted or not isinstance(value, list):
        return
    if len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        yield ValidationError("it names something twice")


def check_pattern(pattern: str, flags: int = 0) -> None:
    """Compile a pattern, within bounds.

    Raises:
        BadSchema: it may take long.
        ValueError: Python does not read it.
    """
    is_costly = "[" in pattern and _BEYOND_ASCII.search(pattern) is not None
    most = MAX_COSTLY_PATTERN if is_costly else MAX_PATTERN
    if len(pattern) > most:
        why = ", and a [...] with characters beyond ASCII" if is_costly else ""
        raise BadSchema(f"the pattern {shorten(pattern)} has more than {most} characters{why}")
    compiled(pattern, flags)


class _Patterns:
    """The check of the format `regex` in one schema, within bounds; no other format is judged."""

    def __init__(self) -> None:
        self._left = PATTERN_SECONDS

    def check(self, text: object, format: str) -> None:
        """Compile `text` where the format is `regex`. Raises BadSchema."""
        if format != "regex" or not isinstance(text, str):
            return
        began = time.thread_time()
        try:
            check_pattern(text)
        except ValueError as error:
            raise BadSchema(f"the pattern {shorten(text)} is none that Python reads ({error})") from error
        self._left -= time.thread_time() - began
        if self._left < 0:
            raise BadSchema("its patterns take too long to compile, so make them fewer or simpler")


# -- schemas that nothing fits


_TYPES = frozenset(("null", "boolean", "string", "array", "object", "integer", "number"))
"""`number` is one that is no integer, as a schema of the type `number` takes both."""
_BOUNDS = (
    ({"string"}, "minLength", "maxLength"),
    ({"array"}, "minItems", "maxItems"),
    ({"object"}, "minProperties", "maxProperties"),
    ({"integer", "number"}, "minimum", "maximum"),
)
_EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_PLAIN = {
    "type",
    "enum",
    "const",
    "required",
    *_EXCLUSIVE.values(),
    *(key for _, *keys in _BOUNDS for key in keys),
}
"""The keywords by which a value is judged at once: no patterns, and nothing about its parts."""
_MOST_STEPS = 2_000
_MOST_JUDGEMENTS = 5_000
_DEEPEST = 100

_Part = tuple[Any, str]
"""A schema and its position."""


class _Contradictions:
    """Finds the reason why no value fits a schema, where that is plain to see.

    What has to fit the same value is judged together: the parts of `allOf`, the target of a `$ref`, and what
    the `properties` of all of them require of one name. `targets` are those of references. What takes too
    many steps to see is supposed to fit.
    """

    def __init__(self, targets: Mapping[int, Any], draft: str) -> None:
        self._targets = targets
        self._reference_alone = draft in _REFERENCE_ALONE
        self._judge = _judge(draft).kind
        self._left = _MOST_STEPS
        self._open: set[frozenset[int]] = set()
        self._fine: set[frozenset[int]] = set()

    def of(self, *parts: _Part) -> str | None:
        """Return the reason why no value fits all `parts`, as a part of a sentence, or None."""
        self._left -= len(parts)
        if self._left < 0:
            return None
        for schema, at in parts:
            if schema is False:
                return f"at {at} it is false"
        parts = tuple(part for part in parts if isinstance(part[0], dict))
        key = frozenset(id(schema) for schema, _ in parts)
        if not parts or key in self._fine or len(self._open) > _DEEPEST:
            return None
        if key in self._open:
            return f"at {parts[0][1]} it needs itself, without an end"
        self._open.add(key)
        reason = next(filter(None, self._reasons(parts)), None)
        self._open.discard(key)
        if reason is None:
            self._fine.add(key)
        return reason

    def _reasons(self, parts: Sequence[_Part]) -> Iterator[str | None]:
        for part in parts:
            yield from map(self.of, self._of_same_value(part))
        walked = self._together(parts)
        # In some drafts nothing counts next to a reference; what has been tried counts as tried all the same.
        whole = [(s, at) for s, at in walked if not (self._reference_alone and id(s) in self._targets)]
        if not whole:
            return
        for schema, at in whole:
            if "not" in schema and schema["not"] in ({}, True):
                yield f"at {at} not forbids everything"
        types = _types(whole)
        if not types or not self._has_value(whole):
            yield f"at {whole[0][1]} no value is left by type, enum and const"
        yield from _of_bounds(types, whole)
        yield from self._of_content(types, whole)
        tried = {id(True), *(id(schema) for schema, _ in walked)}
        for schema, at in whole:
            for key in ("anyOf", "oneOf"):
                choices = schema.get(key, [])
                if choices and not any(id(choice) in tried for choice in choices):
                    named = ((choice, _step(at, f"{key}/{n}")) for n, choice in enumerate(choices))
                    yield self._of_choices(named, walked)

    def _of_same_value(self, part: _Part) -> Iterator[_Part]:
        """Yield what has to fit the same value as `part`."""
        schema, at = part
        if id(schema) in self._targets:
            yield self._targets[id(schema)], _step(at, "$ref")
            if self._reference_alone:
                return
        for number, below in enumerate(schema.get("allOf", [])):
            yield below, _step(at, f"allOf/{number}")

    def _together(self, parts: Sequence[_Part]) -> list[_Part]:
        """Return `parts` with all that has to fit the same value, each schema once."""
        whole: dict[int, _Part] = {}
        todo = list(reversed(parts))
        while todo and self._left > 0:
            self._left -= 1
            part = todo.pop()
            if isinstance(part[0], dict) and id(part[0]) not in whole:
                whole[id(part[0])] = part
                todo += self._of_same_value(part)
        return list(whole.values())

    def _of_choices(self, choices: Iterable[_Part], whole: Sequence[_Part]) -> str | None:
        reasons = []
        for choice in choices:
            if (reason := self.of(choice, *whole)) is None:
                return None
            reasons.append(reason)
        return reasons[0]

    def _has_value(self, whole: Sequence[_Part]) -> bool:
        """Return whether a value that `enum` and `const` name fits, or they name none."""
        lists = [schema["enum"] for schema, _ in whole if "enum" in schema]
        if "const" in self._judge.VALIDATORS:
            lists += [[schema["const"]] for schema, _ in whole if "const" in schema]
        if not lists:
            return True
        values = min(lists, key=len)
        if len(values) * (len(whole) + sum(map(len, lists)) - len(values)) > _MOST_JUDGEMENTS:
            return True
        judges = self._judges(whole, values)
        return any(all(judge.is_valid(value) for judge in judges) for value in values)

    def _judges(self, whole: Sequence[_Part], values: Sequence[object]) -> list[Any]:
        """Return validators for one of `values`: of the plain keywords in `whole`, also below `not`."""
        judges = []
        for schema, _ in whole:
            plain = {key: schema[key] for key in schema if key in _PLAIN and schema[key] is not values}
            if isinstance(schema.get("not"), dict) and schema["not"].keys() <= _PLAIN:
                plain["not"] = schema["not"]
            if plain:
                judges.append(self._judge(plain))
        return judges

    def _of_content(self, types: Set[str], whole: Sequence[_Part]) -> Iterator[str | None]:
        """Judge what a value has to contain."""
        if types == {"object"}:
            for name in dict.fromkeys(name for schema, _ in whole for name in schema.get("required", [])):
                yield self._of_property(name, whole)
        needs_item = any(schema.get("minItems", 0) > 0 for schema, _ in whole)
        if types == {"array"} and needs_item and not any("prefixItems" in schema for schema, _ in whole):
            yield self.of(*((schema.get("items"), _step(at, "items")) for schema, at in whole))

    def _of_property(self, name: str, whole: Sequence[_Part]) -> str | None:
        below: list[_Part] = []
        for schema, at in whole:
            properties = schema.get("properties", {})
            if name in properties:
                below.append((properties[name], _step(at, f"properties/{name}")))
            elif schema.get("additionalProperties") is False and "patternProperties" not in schema:
                near = nearest(name, properties)
                meant = f" (nearest: {shorten(near)})" if near else ""
                lacks = f"at {at} required names {shorten(name)}, which properties lacks and"
                return f"{lacks} additionalProperties forbids{meant}: name it in both"
        return self.of(*below)


def _types(whole: Sequence[_Part]) -> Set[str]:
    """Return the types of the values that can fit `whole`."""
    types = _TYPES
    for schema, _ in whole:
        if "type" in schema:
            types &= _named(schema["type"])
        if isinstance(schema.get("not"), dict) and schema["not"].keys() == {"type"}:
            types -= _named(schema["not"]["type"])
    return types


def _named(types: str | list[str]) -> Set[str]:
    named = {types} if isinstance(types, str) else set(types)
    return named | {"integer"} if "number" in named else named


def _of_bounds(types: Set[str], whole: Sequence[_Part]) -> Iterator[str]:
    for kinds, least, most in _BOUNDS:
        if not types <= kinds:
            continue
        lowest = max(_bounds(whole, least), default=None)
        highest = min(((bound, not is_beyond) for bound, is_beyond in _bounds(whole, most)), default=None)
        if lowest is None or highest is None:
            continue
        is_beyond = lowest[1] or not highest[1]
        if lowest[0] > highest[0] or (lowest[0] == highest[0] and is_beyond):
            yield f"at {whole[0][1]} nothing is left between {least} and {most}"


def _bounds(whole: Sequence[_Part], key: str) -> Iterator[tuple[float, bool]]:
    """Yield each bound of this name, and whether a value has to be beyond it."""
    for schema, _ in whole:
        beyond = schema.get(_EXCLUSIVE.get(key), False)
        if key in schema:
            yield schema[key], beyond is True  # as draft 4 has it
        if not isinstance(beyond, bool):
            yield beyond, True


def _step(at: str, step: str) -> str:
    return step if at == "its root" else f"{at}/{step}"
