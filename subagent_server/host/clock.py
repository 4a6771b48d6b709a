"""The time of day, in one place."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current moment, in UTC."""
    return datetime.now(UTC)
