"""Whose a run is: its parent's, for as long as the process lives through which the parent started it.

A parent hears its own runs, and the runs whose parent has gone: nothing is lost with a server, and two
parents of one root do not answer each other's questions.
"""

from subagent_server.domain.limits import MAX_LABEL_CHARACTERS, cut
from subagent_server.domain.records import StartedBy
from subagent_server.domain.visible import visible
from subagent_server.host import processes
from subagent_server.host.processes import Identity
from subagent_server.service.access import Caller

COMMAND_LINE = "command line"
"""The client of the runs that a person starts in a terminal."""


class OtherParents:
    """The other parents of this root, as a caller sees them. Each process is checked once."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._alive: dict[Identity, bool] = {}

    def own(self, starter: StartedBy | None) -> bool:
        """Whether the run of this starter is another parent's.

        It is nobody's if no process is on record, or if that process is not proved to live here. Which runs a
        child reaches is decided by their parent run alone.
        """
        if starter is None or self._caller.is_child or self._is_caller(starter):
            return False
        return self._is_alive(starter)

    def name_of_parent(self, starter: StartedBy | None, parent_run_id: str | None) -> str | None:
        """Return the words of a list for the parent of a run, or None if no parent is on record."""
        return self.name(starter) if parent_run_id is None else f"run {parent_run_id}"

    def name(self, starter: StartedBy | None) -> str | None:
        """Return the words for the process through which a tree was started, and its client."""
        if starter is None:
            return None
        if self._is_caller(starter):
            return "you"
        client = visible(cut(starter.client or "a client", MAX_LABEL_CHARACTERS))
        if starter.parent is not None:
            client = f"{client} as {visible(cut(starter.parent, MAX_LABEL_CHARACTERS))}"
        if starter.host != processes.host_name():
            return f"{client} on another host"
        return f"{client}, process {starter.pid}" if self._is_alive(starter) else f"{client}, gone"

    def _is_caller(self, starter: StartedBy) -> bool:
        return (_process(starter), starter.parent) == (self._caller.process, self._caller.parent)

    def _is_alive(self, starter: StartedBy) -> bool:
        process = _process(starter)
        if process not in self._alive:
            self._alive[process] = processes.is_alive(process)
        return self._alive[process]


def _process(starter: StartedBy) -> Identity:
    return Identity(starter.host, starter.pid, starter.start_time, starter.boot_id)


def others_sentence(working: int, asking: int) -> str | None:
    """Return the sentence on the live runs of other parents: their count, and how to see them."""
    if working == 0:
        return None
    if working == 1:
        return f"1 run of another parent {'asks' if asking else 'works'}: list_runs(all=true) shows it."
    what = f", {asking} of them {'asks' if asking == 1 else 'ask'}" if asking else ""
    return f"{working} runs of other parents work{what}: list_runs(all=true) shows them."
