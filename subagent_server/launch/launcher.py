"""The seam between the decision to start a run and the machine that starts its processes."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from subagent_server.store.paths import RunPaths


@dataclass(frozen=True)
class LaunchPackage:
    """The part of a run that reaches the worker through memory and never through the disk.

    `definition` is the agent with its secrets; `environment` is the whole environment of the worker; `prompt`
    is as the starter gave it, and `secrets` are the values that it masked on disk.
    """

    definition: dict[str, Any]
    environment: dict[str, str]
    token: str
    cwd: str
    prompt: str
    secrets: list[str] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    """Slot name to the number of runs that may hold it at once, in the order in which they are taken."""
    after: str | None = None
    """A run whose last process must be gone before the worker begins."""
    script: dict[str, str] | None = None
    """The `name` and `text` of the script that plays the model, if one does."""

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that the shim and the worker read."""
        return {
            "definition": self.definition,
            "environment": self.environment,
            "token": self.token,
            "cwd": self.cwd,
            "prompt": self.prompt,
            "secrets": self.secrets,
            "slots": self.slots,
            "after": self.after,
            "script": self.script,
        }


class Reservation(Protocol):
    """A held `live.lock`, for a process that does not exist yet."""

    def start(self, package: LaunchPackage) -> None:
        """Start the run's process and hand the run over to it.

        Raises:
            LaunchFailed: there is no process; the reservation is given up.
        """
        ...

    def give_up(self) -> None:
        """Let go of the run without starting it."""
        ...


class Start(Protocol):
    """A run that is about to be made."""

    def reserve(self, run: RunPaths) -> Reservation:
        """Hold the run's `live.lock`: from now on a run that is `ready` and unlocked is provably dead.

        Raises:
            StorageFailed: the lock cannot be held.
        """
        ...


class Launcher(Protocol):
    """A way of starting the processes of runs. All of them start the same shim."""

    @property
    def kind(self) -> str:
        """The name that the run's meta file records."""
        ...

    def warm_up(self) -> None:
        """Prepare for later starts in the background, if this launcher can."""
        ...

    def reap(self) -> None:
        """Collect the processes that were started here and have ended."""
        ...

    def starting(self) -> AbstractContextManager[Start]:
        """Let the machine prepare a process while a run is made; without a reservation it is let go."""
        ...
