"""The signal dispositions of a process, restored after a starter that ignored some signals.

An ignored signal stays ignored across fork and execve(2). A supervisor ignoring SIGCHLD never collects its
children, and a supervisor ignoring SIGTERM cannot be asked to end. Standard library only: the shim imports
this module.
"""

import signal

_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_FIXED = frozenset({signal.SIGKILL, signal.SIGSTOP})


def restore_defaults() -> None:
    """Handle each ignored signal as a fresh interpreter does whose starter ignored none."""
    for number in signal.valid_signals() - _FIXED - _PYTHON_IGNORES:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
