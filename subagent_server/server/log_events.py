"""An event of a run as a logging notification (SPEC section 5; levels and logger from the seed's task 8)."""

import json
from typing import Any, get_args

from mcp_types import LoggingLevel, LoggingMessageNotification, LoggingMessageNotificationParams

Event = dict[str, Any]

LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""From the least to the most severe, as the protocol declares them."""
MAX_TEXT = 2_000
MAX_DEPTH = 5
MAX_DATA = 8_000
"""Characters of a text in an event, levels of it, and characters of all of it, as JSON."""

_BY_TYPE: dict[str, LoggingLevel] = {
    "thought": "debug",
    "turn": "debug",
    "usage": "debug",
    "subagent_event": "debug",
    "server_log": "debug",
    "tool_progress": "debug",
    "warning": "warning",
    "no_reply": "warning",
}


def is_wanted(level: LoggingLevel, asked: LoggingLevel) -> bool:
    """Whether a client that asked for `asked` and above gets `level`."""
    return LEVELS.index(level) >= LEVELS.index(asked)


def level_of(event: Event) -> LoggingLevel:
    """Return how severe an event is: thoughts debug, trouble that was got over warning, failures error."""
    kind = event.get("type")
    if kind == "run_ended" and event.get("status") == "failed":
        return "error"
    if kind == "tool_result" and (event.get("isError") or event.get("exitCode")):
        return "warning"
    return _BY_TYPE.get(str(kind), "info")


def log_message(agent: str, run_id: str, event: Event) -> LoggingMessageNotification:
    """Return the notification of an event: its data is the event with the id of its run, long texts cut."""
    data = {"runId": run_id, **_bounded(event, MAX_DEPTH)}
    size = len(json.dumps(data, ensure_ascii=False))
    if size > MAX_DATA:
        kept = {key: value for key, value in data.items() if not isinstance(value, dict | list)}
        data = {**_fitting(kept), "cut": True}
    return _message(level_of(event), f"subagent.{agent}", data)


def left_out_message(number: int | None = None, run_id: str | None = None) -> LoggingMessageNotification:
    """Return the notification that too many events (of one run) have come, and some were left out."""
    data = {
        "type": "events_left_out",
        **({} if run_id is None else {"runId": run_id}),
        **({} if number is None else {"count": number}),
        "hint": 'get_logs(stream="events") has them all.',
    }
    return _message("warning", "subagent", data)


def _message(level: LoggingLevel, logger: str, data: Any) -> LoggingMessageNotification:
    params = LoggingMessageNotificationParams(level=level, logger=logger, data=data)
    return LoggingMessageNotification(params=params)


def _fitting(data: Event) -> Event:
    """Return the first facts that fit together."""
    fitting: Event = {}
    left = MAX_DATA
    for key, value in data.items():
        left -= len(json.dumps({key: value}, ensure_ascii=False))
        if left >= 0:
            fitting[key] = value
    return fitting


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, list):
        return [_bounded(item, depth - 1) for item in value]
    return {_text(key): _bounded(item, depth - 1) for key, item in value.items()}


def _text(text: str) -> str:
    """Cut a long text; what UTF-8 cannot hold would end the connection, and becomes `?`."""
    short = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
    return short.encode("utf-8", "replace").decode()
