"""How much of a run's state a model, a child or a caller may fill: every number stands here alone.

The doors refuse an excess before anything changes. What the built-in loop itself says of its run is cut
instead, because nothing that was paid for may be lost. Reading knows no such bounds: a state that an earlier
version wrote is read as it is; views and lists show as much of it as they would of a new one.
"""

from collections.abc import Sequence

from subagent_server.domain.errors import BadArgument

MAX_PROMPT_CHARACTERS = 1_000_000
MAX_LABEL_CHARACTERS = 200
MAX_QUESTION_CHARACTERS = 20_000
MAX_OPTIONS = 20
MAX_OPTION_CHARACTERS = 200
MAX_OPEN_QUESTIONS = 16
MAX_QUESTIONS = 200
MAX_ANSWER_CHARACTERS = 200_000
MAX_TALK_CHARACTERS = 4_000_000
"""Of all questions, options and answers of a run: its state stays far below what readers take."""
MAX_SUMMARY_CHARACTERS = 4_000
"""Of a summary, a failure's message, and the reason of a stop."""
MAX_REPORT_CHARACTERS = 200_000
"""Of a summary as a program reports it: the state has its beginning, and the result of an end all of it."""
MAX_PAYLOAD_BYTES = 64 << 20
PROGRESS_SECONDS = 1.0
"""Reports of progress that come closer together are one transition; the latest summary stands."""

_INTO_A_FILE = "shorten it, and put the material into a file that it names."


def check_question(question: str, options: Sequence[str]) -> None:
    """Refuse a question that is empty or too large.

    Raises:
        BadArgument.
    """
    if not question.strip():
        raise BadArgument("The question is empty: say what the parent shall decide.")
    _check("The question", question, MAX_QUESTION_CHARACTERS)
    if len(options) > MAX_OPTIONS:
        raise BadArgument(
            f"The question has {len(options):,} of at most {MAX_OPTIONS} options: offer the likeliest."
        )
    for number, option in enumerate(options, start=1):
        _check(f"Option {number}", option, MAX_OPTION_CHARACTERS)


def check_answer(answer: str) -> None:
    """Refuse an answer that is too long. Raises BadArgument."""
    _check("The answer", answer, MAX_ANSWER_CHARACTERS)


def check_summary(summary: str | None) -> None:
    """Refuse a summary that is too long even for a result. Raises BadArgument."""
    _check("The summary", summary or "", MAX_REPORT_CHARACTERS, "shorten it; `payload` takes the whole.")


def check_reason(reason: str | None) -> None:
    """Refuse the reason of a stop that is too long. Raises BadArgument."""
    _check("The reason", reason or "", MAX_SUMMARY_CHARACTERS, "shorten it.")


def check_payload_size(size: int) -> None:
    """Refuse a payload of so many bytes if they are too many. Raises BadArgument."""
    if size > MAX_PAYLOAD_BYTES:
        raise BadArgument(
            f"The payload has {size:,} of at most {MAX_PAYLOAD_BYTES:,} bytes: leave it in a file, "
            "and name that in the summary."
        )


def cut(text: str, most: int = MAX_SUMMARY_CHARACTERS) -> str:
    """Return at most `most` characters of a text that its run itself has made."""
    return text if len(text) <= most else text[: most - 1] + "…"


def maybe_cut(text: str | None, most: int = MAX_SUMMARY_CHARACTERS) -> str | None:
    """The same of a text that may be missing."""
    return None if text is None else cut(text, most)


def _check(what: str, text: str, most: int, instead: str = _INTO_A_FILE) -> None:
    if len(text) > most:
        raise BadArgument(f"{what} has {len(text):,} of at most {most:,} characters: {instead}")
