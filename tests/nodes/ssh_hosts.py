"""Hosts for `ssh` on one machine, as an ordinary user: each is a name and a pid namespace of its own.

All share the files of this machine. `kill` of the init of a host is a power cut, and no process of a host can
be seen from another one. The `ssh` of `environment` reads a configuration, with a key, that is made here.
"""

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.helpers.files import write_program
from tests.helpers.http_server import free_port
from tests.helpers.wait import wait_for

PROGRAMS = ("ssh", "ssh-keygen", "sshd", "unshare")
HOSTS = ("h1", "h2")
BOUND = 60.0
_SPACE = (
    "unshare",
    *(() if os.getuid() == 0 else ("--user", "--map-current-user", "--keep-caps")),
    *("--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
_INIT = """\
hostname "$1"; [ -z "$4" ] || mount -t tmpfs none "$4"
setpriv --inh-caps=-all --ambient-caps=-all "$2" -D -e -f "$3" & echo $! > "$3.pid"
while :; do wait; sleep 0.1; done"""
"""The init of a host reaps orphans, and it alone mounts. A fourth word is a directory that is empty there."""
_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/key
AuthorizedKeysFile {home}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
"""
_CLIENT = """\
Include {home}/hosts/*
Host *
  HostName 127.0.0.1
  User {user}
  IdentityFile {home}/key
  IdentitiesOnly yes
  UserKnownHostsFile {home}/known
  StrictHostKeyChecking accept-new
  LogLevel ERROR
  ControlMaster auto
  ControlPath {home}/%C
  ControlPersist 60
"""
"""As many have it: a connection that is kept would hold the output of a launcher open."""


def missing() -> list[str]:
    """Return the programs that are not installed here."""
    return [name for name in PROGRAMS if _found(name) is None]


class SshHosts:
    """Hosts that `ssh NAME` reaches; `environment` is what a client needs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
        self._inits: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "SshHosts":
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.home / "key"],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        for name in ("bin", "hosts"):
            (self.home / name).mkdir()
        config = _CLIENT.format(user=getpass.getuser(), home=self.home)
        (self.home / "config").write_text(config, encoding="utf-8")
        client = f'#!/bin/sh\nexec {_found("ssh")} -F {self.home}/config "$@"\n'
        write_program(self.home / "bin" / "ssh", client)
        for host in HOSTS:
            self.up(host)
        return self

    def __exit__(self, *_: object) -> None:
        for host in list(self._inits):
            self.power_off(host)

    def up(self, host: str, without: Path | None = None) -> None:
        """Start a host; nothing is in the directory `without` there."""
        port, server = free_port(), self.home / f"sshd.{host}"
        server.write_text(_SERVER.format(port=port, home=self.home), encoding="utf-8")
        (self.home / "hosts" / host).write_text(f"Host {host}\n  Port {port}\n", encoding="utf-8")
        with (self.home / f"log.{host}").open("ab") as log:
            words = ["sh", "-c", _INIT, "init", host, str(_found("sshd")), str(server), str(without or "")]
            self._inits[host] = subprocess.Popen(
                [*_SPACE, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        wait_for(lambda: _answers(port), BOUND, f"sshd of {host}")

    def power_off(self, host: str) -> None:
        """Cut the power of a host: its init dies, and with it every process."""
        init = self._inits.pop(host)
        init.kill()  # --kill-child takes the init along
        init.wait()

    def on(self, host: str, *words: str) -> str:
        """Return what a command says there."""
        done = subprocess.run(
            [self.home / "bin" / "ssh", "-o", "ControlMaster=no", host, *words],
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        return done.stdout

    def end_server(self, host: str) -> None:
        """End the `sshd` of a host, which lives on."""
        self.on(host, f"kill -9 $(cat {self.home}/sshd.{host}.pid)")


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
