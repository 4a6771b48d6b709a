"""The suite runs the same in the background, from cron, or by a CI that closes stdin."""

import os
import signal

_INHERITED = (
    *(signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2),
)


def forget_starter() -> None:
    """Give this process, and all that it starts, the attributes of a process that a shell starts.

    A starter may ignore signals, which every program inherits and some obey; set a umask; or leave a standard
    stream closed, so that the next file that is opened becomes it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
