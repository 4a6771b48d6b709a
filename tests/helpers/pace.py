"""The pace of a run that calls its API alone."""


class Alone:
    """Implements `toolbox.run_context.Pace` without other runs."""

    def hold(self) -> float:
        """Return 0: no other run is considered."""
        return 0.0

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Return `seconds`."""
        return seconds
