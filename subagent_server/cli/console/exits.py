"""The exit codes of the command (SPEC section 11), and the exception that ends a verb early."""

from enum import IntEnum

from subagent_server.domain.errors import (
    CallerError,
    ForeignRoot,
    HostError,
    InvalidRunId,
    RunError,
    SubagentError,
    UnknownAgent,
    UnknownRun,
)


class ExitCode(IntEnum):
    """The exit codes of every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    STOPPED = 4
    NEEDS_ANSWER = 5
    ENVIRONMENT = 6
    TIMED_OUT = 124
    INTERRUPTED = 130


class EarlyExit(Exception):
    """Ends the verb with this exit code and one sentence for people that says why."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


_BY_FAMILY: tuple[tuple[type[SubagentError], ExitCode], ...] = (
    (UnknownRun, ExitCode.UNKNOWN),
    (InvalidRunId, ExitCode.UNKNOWN),
    (UnknownAgent, ExitCode.UNKNOWN),
    (ForeignRoot, ExitCode.ENVIRONMENT),
    (CallerError, ExitCode.USAGE),
    (RunError, ExitCode.FAILED),
    (HostError, ExitCode.ENVIRONMENT),
)
"""The first match counts. A malformed run id cannot name a run, so it is unknown too."""


def exit_of_error(error: SubagentError) -> ExitCode:
    """Return the exit code of an error, by its family."""
    return next((code for kind, code in _BY_FAMILY if isinstance(error, kind)), ExitCode.ENVIRONMENT)
