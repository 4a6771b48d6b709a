"""Why a regular expression cannot be searched for, as one sentence with the place of the fault."""

import re

_MOST_BYTES = 100_000
_WRAPPER = len("(?:")
_SYNTAX = re.compile(r"regex parse error:\n {4}(.*)\n {4}( *)\^.*\nerror: (.*)")
_ESCAPED_OR_BRACKET = re.compile(r"\\.|[()\[\]]", re.DOTALL)
_LINE_END = "each line is searched by itself, so a pattern cannot hold a line end"


def fault_of_pattern(pattern: str) -> str | None:
    """Return the fault of a pattern that ripgrep cannot be given, or would report at another place."""
    if "\0" in pattern:
        return "it holds a NUL character, and files with such are binary"
    if "\n" in pattern:
        return _LINE_END
    if len(pattern.encode()) > _MOST_BYTES:
        return f"it has more than {_MOST_BYTES:,} bytes"
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        return f"nothing follows the backslash at its end (at character {len(pattern)})"
    return None


def reason_of(refusal: str, pattern: str) -> str:
    """Return why ripgrep refused `pattern`; `refusal` is its output on stderr."""
    if syntax := _SYNTAX.search(refusal):
        position = len(syntax[2]) - _WRAPPER  # ripgrep puts the pattern into a group
        if position < 0:
            position = _unclosed_group(pattern)
        return f"{syntax[3]} (at character {position + 1})" if position >= 0 else syntax[3]
    if "is not allowed in a regex" in refusal:
        return _LINE_END
    if "exceeds size limit" in refusal:
        return "it is too large"
    return refusal.strip().partition("\n")[0].removeprefix("rg: ").rstrip(".")


def _unclosed_group(pattern: str) -> int:
    """Return the index of the innermost bracket that opens a group and is not closed, or -1."""
    open_groups: list[int] = []
    in_class = False
    for found in _ESCAPED_OR_BRACKET.finditer(pattern):
        bracket = found[0]
        if in_class or bracket == "[":
            in_class = bracket != "]"
        elif bracket == "(":
            open_groups.append(found.start())
        elif bracket == ")" and open_groups:
            open_groups.pop()
    return open_groups[-1] if open_groups else -1
