"""The ready scorers of evaluations: whether a text has what was wanted. Pure.

Case, white space at the ends of lines, and punctuation around the whole do not count, as in Inspect's scorers
of these names.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import sqrt
from statistics import stdev

_AROUND = " \t\r\n.,;:!?*_`\"'()[]"
_NUMBER = re.compile(
    r"(?:(?<!\w)[-+])?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII
)
_CHOICE = re.compile(r"(?im)^[^\w\n]*(?:the )?(?:final )?answer(?: is)?\W+([a-z](?:\s*,\s*[a-z])*)\W*$")
_LETTERS = re.compile(r"(?i)\W*([a-z](?:\s*,\s*[a-z])*)(?:[).:]\s.*|\W*)", re.DOTALL)
MAX_NUMBER_CHARACTERS = 100_000
"""How much of the end of a result is searched for a number or a choice."""


def match(text: str, wanted: str, _: Decimal) -> bool:
    """Whether a text is what was wanted, or ends with it, as a whole word."""
    found, target = _plain(text), _plain(wanted)
    before = found.removesuffix(target)
    return found == target or (before != found and not before[-1:].isalnum())


def includes(text: str, wanted: str, _: Decimal) -> bool:
    """Whether a text holds what was wanted."""
    return " ".join(wanted.casefold().split()) in " ".join(text.casefold().split())


def choice(text: str, wanted: str, _: Decimal) -> bool:
    """Whether a text chooses these letters: on a line `ANSWER: B`, of which the last counts, or alone."""
    end = text[-MAX_NUMBER_CHARACTERS:]
    lines = _CHOICE.findall(end)
    alone = _LETTERS.fullmatch(end.strip()) if not lines else None
    found = lines[-1] if lines else alone[1] if alone else ""
    return bool(found) and set(re.findall("[a-z]", found.lower())) == set(re.findall("[a-z]", wanted.lower()))


def number(text: str, wanted: str, tolerance: Decimal) -> bool:
    """Whether the last number of a text is the wanted one, within a tolerance."""
    found = numbers_of(text[-MAX_NUMBER_CHARACTERS:])
    target = numbers_of(wanted)
    return bool(found and target) and abs(found[-1] - target[-1]) <= tolerance


def numbers_of(text: str) -> list[Decimal]:
    """Return the numbers of a text, `1,234.5` as 1234.5; a `-` between two, as in 12-14, is no sign."""
    found = _NUMBER.findall(text.replace("\u2212", "-"))  # the minus of typography
    return [Decimal(each.replace(",", "")) for each in found]


SCORERS: Mapping[str, Callable[[str, str, Decimal], bool]] = {
    "match": match,
    "includes": includes,
    "choice": choice,
    "number": number,
}


def passes(scorer: str, text: str, targets: Sequence[str], tolerance: Decimal) -> bool:
    """Whether a text has one of the targets."""
    return any(SCORERS[scorer](text, target, tolerance) for target in targets)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(_AROUND)


# -- Numbers of repeated trials.


def pass_at(trials: int, passed: int, most: int) -> float:
    """Return how likely at least one of `most` trials passes (Chen et al. 2021, unbiased)."""
    missed = 1.0
    for left in range(most):
        missed *= max(0, trials - passed - left) / (trials - left)
    return 1 - missed


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean; None of less than two values."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None
