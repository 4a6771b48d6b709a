"""Commands with a bound: of the user for an event, and others whose output is read.

A command for an event is started by `python -I -S bounded_command.py SECONDS COMMAND...`. It has the stdin of
this process. When it has ended, when its time is over, or when this process is asked to end, every process
that it has left is killed. This process exits with the code of the command, or with 124 if its time was over.
Standard library only: it starts for every event.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # -I leaves out the directory of the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from subagent_server.run import processes
from subagent_server.run.errors import visible
from subagent_server.run.files import held_open, in_memory
from subagent_server.run.states import cut

EXIT_LATE = 124
EXIT_NOT_STARTED = 127
MAX_TEXT_CHARACTERS = 1_000
"""Of a question or a summary in an environment variable; stdin has the whole text."""
_OF_A_RUN = ("SUBAGENT_RUN_ID", "SUBAGENT_RUN_TOKEN", "SUBAGENT_LOGGING_ADDRESS")
_KILL_SECONDS = 5.0
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def start(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    stdin: bytes,
    *,
    with_starter: bool,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Start a command with a bound, with `stdin` as its input; no shell reads any of it.

    `with_starter`: it ends when the process that started it ends. `options` are of `subprocess.Popen`.

    Raises:
        OSError: the machine has no room for a process.
    """
    with held_open(in_memory(stdin)) as file:
        bound = f"{seconds:g}" if with_starter else f"+{seconds:g}"
        words = [sys.executable, "-I", "-S", __file__, bound, *command]
        return subprocess.Popen(
            words, stdin=file, env=dict(environment), start_new_session=True, close_fds=True, **options
        )


def start_for_event(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    event: str,
    facts: Mapping[str, Any],
    **how: Any,
) -> "subprocess.Popen[bytes]":
    """Start a command that the user has set for an event, as `start` does; `how` are its other arguments.

    The facts are data: a line of JSON on its stdin, `SUBAGENT_EVENT` and its kind in its environment, texts
    cut, on one line, and without control characters. A token of a run is not passed on.
    """
    named = {
        "SUBAGENT_EVENT": event,
        "SUBAGENT_EVENT_RUN": facts.get("runId"),
        "SUBAGENT_EVENT_AGENT": facts.get("agent"),
        "SUBAGENT_EVENT_STATUS": facts.get("status"),
        "SUBAGENT_EVENT_TEXT": facts.get("question") or facts.get("summary") or facts.get("error"),
    }
    variables = {name: value for name, value in environment.items() if name not in _OF_A_RUN}
    variables |= {name: _plain(str(value)) for name, value in named.items() if value is not None}
    return start(command, seconds, variables, json.dumps({"event": event, **facts}).encode() + b"\n", **how)


class TooMuch(ValueError):
    """A command printed more than its caller takes."""


def outputs_of(process: "subprocess.Popen[bytes]", seconds: float, most: int) -> list[bytes]:
    """Return what a process writes into its pipes, when it has ended; else it is killed.

    Raises:
        subprocess.TimeoutExpired: it is late, or what it has left keeps a pipe open.
        TooMuch: one of them has more than `most` bytes.
    """
    deadline = time.monotonic() + seconds
    written = [(pipe, bytearray()) for pipe in (process.stdout, process.stderr) if pipe is not None]
    with process, selectors.DefaultSelector() as unread:
        for pipe, content in written:
            unread.register(pipe, selectors.EVENT_READ, content)
        try:
            while unread.get_map():
                ready = unread.select(max(0.0, deadline - time.monotonic()))
                if not ready or time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(process.args, seconds)
                for key, _ in ready:
                    if not (chunk := os.read(key.fd, 1 << 16)):
                        unread.unregister(key.fileobj)
                    key.data.extend(chunk)
                    if len(key.data) > most:
                        raise TooMuch(f"it says more than {most >> 20} MiB")
            process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            process.kill()
    return [bytes(content) for _, content in written]


def _plain(text: str) -> str:
    one_line = visible(" ".join(text.split()))
    return cut(one_line, MAX_TEXT_CHARACTERS).encode("utf-8", "replace").decode()


def main(arguments: Sequence[str]) -> int:
    """Run the command of the arguments within its bound, and return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING | {signal.SIGCHLD})
    processes.adopt_orphans()  # so that none of the command's outlives the bound
    if not arguments[0].startswith("+"):
        processes.end_with_parent(signal.SIGTERM)
    deadline = time.monotonic() + float(arguments[0])
    try:
        child = subprocess.Popen(arguments[1:], preexec_fn=_unblock)
    except (OSError, ValueError) as error:
        print(f"{arguments[1]}: {error}", file=sys.stderr)
        return EXIT_NOT_STARTED
    code = _wait(child.pid, deadline)
    _end_all()
    return code


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _wait(child: int, deadline: float) -> int:
    """Return the exit code of the command, or that it did not end in time."""
    while (left := deadline - time.monotonic()) > 0:
        ended = processes.reap_children()
        if child in ended:
            code = os.waitstatus_to_exitcode(ended[child])
            return code if code >= 0 else 128 - code
        received = signal.sigtimedwait(_STOPPING | {signal.SIGCHLD}, left)
        if received is not None and received.si_signo in _STOPPING:
            break
    return EXIT_LATE


def _end_all() -> None:
    """Kill every process below this one; each look finds the orphans of the look before."""
    give_up = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < give_up:
        living = processes.descendants([os.getpid()])
        processes.reap_children()  # second: the last of them leave no zombies behind
        if not living:
            return
        for each in living:
            processes.send_signal(each, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
