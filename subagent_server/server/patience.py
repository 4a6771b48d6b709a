"""How long a client bears a call, by its name (measured; see `docs/tools.md`)."""

DEFAULT_SECONDS = 50.0
_BY_CLIENT = {"claude-code": 1500.0, "codex": 280.0, "gemini-cli": 570.0}


def bearable_seconds(client_name: str | None, maximum: float | None) -> float:
    """Return the longest wait for a client, in seconds; `maximum` (`--max-wait`) overrules it."""
    if maximum is not None:
        return maximum
    for start, seconds in _BY_CLIENT.items():
        if client_name is not None and client_name.lower().startswith(start):
            return seconds
    return DEFAULT_SECONDS
