"""Run ids: made to sort by time, checked before any path is built from one.

Standard library only: the shim imports this module.
"""

import re
from datetime import UTC, datetime

from subagent_server.domain.errors import InvalidRunId

MAX_LENGTH = 32
RUN_ID_PATTERN = rf"[a-z0-9][a-z0-9-]{{0,{MAX_LENGTH - 1}}}"
_RUN_ID = re.compile(RUN_ID_PATTERN)
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no letter that is taken for a digit


def make_run_id(now: datetime, entropy: bytes) -> str:
    """Return an id that sorts by `now` (milliseconds, UTC), such as `20261122-093015-417-k3f9qz`.

    `entropy` is at least six random bytes; they make two ids of one millisecond differ.
    """
    utc = now.astimezone(UTC)
    tail = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in entropy[:6])
    return f"{utc:%Y%m%d-%H%M%S}-{utc.microsecond // 1000:03d}-{tail}"


def check_run_id(text: str) -> str:
    """Return `text` if it may name a run directory.

    Raises:
        InvalidRunId: it holds anything but 1 to 32 of `[a-z0-9-]`, or starts with a dash.
    """
    if not is_run_id(text):
        raise InvalidRunId(text)
    return text


def is_run_id(text: str) -> bool:
    """Whether `text` may name a run directory."""
    return _RUN_ID.fullmatch(text) is not None
