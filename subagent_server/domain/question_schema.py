"""The JSON Schemas of a question and its options, for every door through which an agent asks."""

from typing import Any

from subagent_server.domain.limits import MAX_OPTION_CHARACTERS, MAX_OPTIONS, MAX_QUESTION_CHARACTERS

QUESTION_SCHEMA: dict[str, Any] = {"type": "string", "maxLength": MAX_QUESTION_CHARACTERS}
OPTIONS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "maxLength": MAX_OPTION_CHARACTERS},
    "maxItems": MAX_OPTIONS,
}
