"""The log of the server over HTTP: JSON on stderr, a line for each event."""

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

MAX_TEXT = 2_000


def write_line(facts: Mapping[str, Any]) -> None:
    """Write a line with the facts that are known, after the time."""
    known = {key: value for key, value in facts.items() if value is not None}
    line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **known})
    with suppress(OSError, ValueError):  # nobody reads it: the requests are answered all the same
        print(line, file=sys.stderr, flush=True)


class JsonLines(logging.Handler):
    """Writes what libraries log in the form of the other lines, with the traceback of a fault."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        error = record.exc_info[1] if record.exc_info else None
        trace = "".join(traceback.format_exception(error)) if error is not None else None
        write_line(
            {
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage()[:MAX_TEXT],
                "trace": trace,
            }
        )


def log_as_json() -> None:
    """Let warnings and faults of libraries be written as lines of JSON from now on."""
    logging.basicConfig(level=logging.WARNING, handlers=[JsonLines()], force=True)
