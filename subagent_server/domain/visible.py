"""Control characters made visible: they would move a cursor, colour a terminal or turn a line around."""

OTHER_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
"""The spaces of other scripts (category Zs), which are harmless."""


def visible(text: str, kept: str = "") -> str:
    r"""Return `text` with all that does not print as an escape such as `\x1b`, except what is in `kept`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text
    )
