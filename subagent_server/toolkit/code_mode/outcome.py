"""How a program has ended, by its last record on the socket and its exit code."""

import signal
from dataclasses import dataclass
from enum import IntEnum

from subagent_server.toolkit.code_mode.channel import Channel

FAULT_CODE = 3


class Outcome(IntEnum):
    """The four outcomes of a program."""

    DONE = 0
    RAISED = 1
    DIED = 2
    FAULT = 3


@dataclass(frozen=True)
class ProgramEnd:
    """The end of a program; `remark` says it to the model, empty if it went well."""

    outcome: Outcome
    exit_code: int | None
    remark: str = ""


def judged(channel: Channel, exit_code: int | None) -> ProgramEnd:
    """Return how a program has ended by itself.

    A fault of our own part counts only if that part has reported it and left with its code: `sys.exit(3)` in
    the code is the code's own affair. A process that left without a report of its end has died.
    """
    if channel.fault is not None and exit_code == FAULT_CODE:
        return ProgramEnd(Outcome.FAULT, exit_code, channel.fault)
    if exit_code is None or exit_code < 0 or channel.end not in (0, 1):
        return ProgramEnd(Outcome.DIED, exit_code, f"[the program died: {_how(channel, exit_code)}]")
    if channel.end == 0 and exit_code == 0:
        return ProgramEnd(Outcome.DONE, exit_code)
    return ProgramEnd(Outcome.RAISED, exit_code, f"[exit code {exit_code}]")


def _how(channel: Channel, exit_code: int | None) -> str:
    if exit_code is None:
        return "it could not be killed"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else str(-exit_code)
        return f"it was ended by signal {name}"
    if channel.end == 2:
        return "out of memory"
    return f"it left with exit code {exit_code} before its end"
