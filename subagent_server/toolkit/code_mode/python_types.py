"""Types of Python as text. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.toolkit.code_mode.schema_parts import kinds_of

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
        """Return the type `form`, in which `{}` stands for this one."""
        return PythonType((form.format(self.annotation()),), (), self.reasons)

    def without(self, name: str) -> "PythonType":
        """Return the type without one member."""
        members, early = (
            tuple(each for each in names if each != name) for names in (self.members, self.early)
        )
        return PythonType(members, self.literals, self.reasons, early)

    def annotation(self) -> str:
        """Return the expression for a place where a type that comes later must be quoted."""
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
