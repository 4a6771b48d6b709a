"""How this product writes times. Standard library only."""

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """Return `moment` as text: UTC, milliseconds, `Z`."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"
