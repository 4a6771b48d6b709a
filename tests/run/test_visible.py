"""What is made visible, and what is let through."""

import pytest

from subagent_server.run.errors import visible


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "क्\u200dष",
        "\U0001f469\u200d\U0001f467",
        "❤\ufe0f\u200d\U0001f525",
    ],
)
def test_a_joiner_is_kept_between_letters_and_pictures_that_it_joins(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pyt\u200dhon", r"pyt\u200dhon"),
        ("\u200dक", r"\u200dक"),
        ("क\u200d", r"क\u200d"),
        ("क\u200d\u200dष", r"क\u200d\u200dष"),
        ("数\u200d据", r"数\u200d据"),
        ("क\u200d/", r"क\u200d/"),
        ("\u202eabc", r"\u202eabc"),
        ("a\x1b[2J", r"a\x1b[2J"),
    ],
)
def test_everything_else_that_does_not_print_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
