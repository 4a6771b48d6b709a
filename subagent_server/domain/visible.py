"""Control characters made visible: they would move a cursor, colour a terminal or turn a line around."""

OTHER_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
"""The spaces of other scripts (category Zs), which are harmless."""


_JOINERS = "\u200c\u200d"
"""They decide how letters of Persian or Hindi are drawn, and make one picture of several."""
_JOINED = (("\u0600", "\u0dff"), ("\u2190", "\u2bff"), ("\ufe0f", "\ufe0f"), ("\U0001f000", "\U0001faff"))
"""Arabic and the scripts of India, and pictures: the characters that a joiner is meant for."""


def visible(text: str, kept: str = "") -> str:
    r"""Return `text` with all that does not print as an escape such as `\x1b`, except what is in `kept`.

    A joiner is kept between two characters that it can join. Anywhere else it would only let two different
    words look the same.
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or c in kept or (c in _JOINERS and _joins(text, at))
        else c.encode("unicode_escape").decode("ascii")
        for at, c in enumerate(text)
    )


def _joins(text: str, at: int) -> bool:
    around = text[max(at - 1, 0) : at] + text[at + 1 : at + 2]
    return len(around) == 2 and all(any(low <= c <= high for low, high in _JOINED) for c in around)
