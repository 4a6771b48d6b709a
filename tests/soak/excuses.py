"""What the judge of a soak lets pass, all of it, and why. Each use is counted in the verdict."""

from collections import Counter

EXCUSES = {
    "a process of the run was killed": (
        "crashed, lost and launch_failed name the death of worker, shim or git, and one was killed"
    ),
    "its starter was killed": "such a run is launch_failed, as it should be",
    "it began half-way through an upgrade": "pip replaces files one by one, and two halves do not fit",
    "a complaint of an upgrade": "it names only files that were missing or of another version",
    "a program of the run was killed": "the model reads that its tool failed: the step is not done",
    "a nested run did not complete": "it was hit itself, and is judged by itself",
    "its parent has ended": "a nested run is stopped with the run that started it",
    "its box or its git was killed": "it is storage, as nobody can tell a kill from a lack of memory",
    "its program was killed": "an external program that is killed has failed: agent_error",
    "its raw file waits for a reader": "only a reader can end a run whose shim, or whose starter, was killed",
}
CAUSES = {
    "crashed": ({"worker", "shim"}, "a process of the run was killed"),
    "lost": ({"worker", "shim"}, "a process of the run was killed"),
    "launch_failed": ({"shim", "git", "grandchild"}, "a process of the run was killed"),
    "storage": ({"box", "git"}, "its box or its git was killed"),
    "agent_error": ({"grandchild", "box"}, "its program was killed"),
}
"""What has to be killed from outside for a run to fail with a code, or a death at a point. A git that was
hit before it was executed is a "grandchild"."""
BY_POINTS = frozenset({"crashed", "lost", "launch_failed"})


class Excuses:
    """Counts what was let pass."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    def take(self, name: str, holds: bool) -> bool:
        """Return whether the excuse holds, and count it if so."""
        assert name in EXCUSES, name
        self.used[name] += holds
        return holds
