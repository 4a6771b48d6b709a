"""Runs on other hosts that share the runs root: what all ways to reach them share, and the way by `ssh`.

What a run needs lies sealed in its directory until the other host takes it; the key alone travels, and opens
nothing without that file. The starter holds the run's lock until the run is handed over, and the shim on its
host waits for the lock. `ssh HOST` starts that shim in a session of its own, and leaves.
"""

import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from subagent_server.process.launcher import LaunchPackage, hold
from subagent_server.run import durable
from subagent_server.run.bounded_command import TooMuch, outputs_of
from subagent_server.run.errors import LaunchFailed, StorageFailed, visible
from subagent_server.run.files import held_open, in_memory
from subagent_server.run.host_programs import NoHostProgram, user_program
from subagent_server.run.paths import RunPaths
from subagent_server.run.stderr import failpoint

KEY = "SUBAGENT_PACKAGE_KEY"
START_SECONDS = 60.0
_MOST_BYTES = 64 << 20
_MOST_WORDS = 300
_NONCE = bytes(12)
"""A key seals one package and no other, so its nonce need not differ."""
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SSH_AUTH_SOCK"),
    *("XDG_RUNTIME_DIR", "KRB5CCNAME"),  # sockets in the configuration of ssh, and a login by Kerberos
)
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ForwardAgent=no", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"),
    # A connection that ssh keeps for others would hold its output open, and nobody would see its end.
    *("-o", "ControlMaster=no"),
)


@dataclass(frozen=True)
class RemoteLauncher:
    """Starts runs on `host`, with the interpreter `python` there."""

    host: str
    python: str = sys.executable
    kind: ClassVar[str]
    refusal: ClassVar[str]
    """A sentence: who did not take a run, `why`, and what to do; `runs` is the runs root."""

    def warm_up(self) -> None:
        """Do nothing: there is nothing to keep warm."""

    def reap(self) -> None:
        """Do nothing: what is started here is waited for."""

    def starting(self) -> AbstractContextManager["RemoteLauncher"]:
        """Return itself: nothing can be prepared."""
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "RemoteReservation":
        """Hold the run until it is handed over. Raises StorageFailed."""
        return RemoteReservation(self, run, hold(run))

    def submit(self, run: RunPaths, key: str) -> None:
        """Have the shim of a run started, with the key of its package. Raises NoAnswer."""
        raise NotImplementedError

    def nodes(self) -> list[str]:
        """Return the names of the hosts that runs may be put on. Raises NoAnswer."""
        raise NotImplementedError

    def execute(self, node: str, words: Sequence[str]) -> None:
        """Have a command executed on a node, now or as soon as it can be. Raises NoAnswer."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Take back what could not be executed yet."""

    def module(self, name: str, *words: str) -> list[str]:
        """Return the command of a module of this package on the host.

        No variable and no file of a working directory changes what it imports.
        """
        return [self.python, "-E", "-P", "-m", f"subagent_server.{name}", *words]


@dataclass(frozen=True)
class RemoteReservation:
    """A held `live.lock`; the shim waits for it, then takes it on its host."""

    launcher: RemoteLauncher
    run: RunPaths
    lock: int

    def give_up(self) -> None:
        """Let go of the lock."""
        os.close(self.lock)

    def start(self, package: LaunchPackage) -> None:
        """Hand the run over. Raises LaunchFailed: it was not, or its beginning finds the run ended."""
        try:
            failpoint("starter.published")
            with self.run.worker_out.appender():  # so that its mode is that of all files here
                key = seal(self.run, package)
            self.launcher.submit(self.run, key)
        except (OSError, StorageFailed, NoAnswer) as error:
            durable.discard(self.run.sealed)
            runs = self.run.directory.parent
            why = self.launcher.refusal.format(host=self.launcher.host, why=error, runs=runs)
            raise LaunchFailed(f"Run {self.run.run_id} could not be started: {why}") from error
        finally:
            self.give_up()
        failpoint("starter.launched")


@dataclass(frozen=True)
class SshLauncher(RemoteLauncher):
    """Starts runs on a host of the user's `ssh` configuration, whose name was checked to be no option.

    A run there is ended by its files alone: its worker sees within 2 s that it was stopped.
    """

    kind = "ssh"
    refusal = "{host} did not take it ({why}): `ssh {host} ls {runs}` must show the runs."

    def submit(self, run: RunPaths, key: str) -> None:
        """Start the shim, with the key by standard input. Raises NoAnswer."""
        words = self.module("process.node_start", str(run.directory))
        self.execute(self.host, words, key.encode())

    def nodes(self) -> list[str]:
        """Return the host."""
        return [self.host]

    def execute(self, node: str, words: Sequence[str], stdin: bytes = b"") -> None:
        """Execute a command there to its end. Raises NoAnswer."""
        call("ssh", *_OPTIONS, "--", node, shlex.join(words), stdin=stdin)


class NoAnswer(Exception):
    """A program that leads to other hosts refused, failed, or was late: the reason, in words for people."""


def call(
    program: str,
    *words: str,
    stdin: bytes = b"",
    seconds: float = START_SECONDS,
    passes: Sequence[int] = (),
) -> str:
    """Return what a program of the user prints, found where no run writes. Raises NoAnswer."""
    try:
        with held_open(in_memory(stdin)) as file:
            process = subprocess.Popen(
                [path_of(program), *words],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=passes,
                env=passed_on(),
                cwd="/",
            )
        printed, complaint = outputs_of(process, seconds, _MOST_BYTES)
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{program} did not answer in {seconds:g} s") from error
    except (OSError, NoHostProgram, TooMuch) as error:
        raise NoAnswer(str(error)) from error
    if process.returncode:
        words_of_it = visible(" ".join(complaint.decode("utf-8", "replace").split()))[-_MOST_WORDS:]
        raise NoAnswer(words_of_it or f"{program} exited with {process.returncode}")
    return printed.decode("utf-8", "replace")


def path_of(program: str) -> str:
    """Return where a program of the user is, but not where a run writes. Raises NoHostProgram."""
    # Shims, and servers of some clients, work in the root directory: no box does, and all programs lie there.
    *around, _ = [Path.cwd(), *Path.cwd().parents]
    writable = [path for path in around if path == Path.cwd() or os.path.lexists(path / ".git")]
    return str(user_program(program, os.environ.get("PATH"), writable))


def passed_on() -> dict[str, str]:
    """Return the environment of such a program: no key of the user is in it."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def seal(run: RunPaths, package: LaunchPackage) -> str:
    """Write the package, sealed, and return its key. Raises StorageFailed."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key = secrets.token_bytes(32)
    plain = json.dumps(package.to_json()).encode("utf-8", "surrogateescape")
    durable.write_new(run.sealed, ChaCha20Poly1305(key).encrypt(_NONCE, plain, run.run_id.encode()))
    return key.hex()


def unseal(run: RunPaths, key: str) -> dict[str, Any]:
    """Return the package of a run and remove its file. Raises OSError, ValueError: the key opens another."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    sealed = run.sealed.read(_MOST_BYTES)
    try:
        plain = ChaCha20Poly1305(bytes.fromhex(key)).decrypt(_NONCE, sealed, run.run_id.encode())
    except InvalidTag as error:
        raise ValueError("the sealed package is not the one that the key belongs to") from error
    run.sealed.unlink()
    package: dict[str, Any] = json.loads(plain.decode("utf-8", "surrogateescape"))
    return package
