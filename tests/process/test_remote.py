"""What leaves this host with a run: a key by standard input, a directory, and nothing else that is secret."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from subagent_server.process import remote
from subagent_server.process.launcher import LaunchPackage
from subagent_server.process.remote import NoAnswer, SshLauncher, call, seal, unseal
from subagent_server.process.shim import EXIT_SECOND_SHIM
from subagent_server.run import locks
from subagent_server.run.errors import BadArgument, LaunchFailed
from subagent_server.run.paths import RunPaths
from subagent_server.run.store import RunStore
from subagent_server.settings import read_settings
from tests.helpers.files import write_program
from tests.helpers.processes import run_python
from tests.helpers.runs import RUN_ID, make_request
from tests.helpers.world import API_KEY

OTHER = "20261122-093015-418-k3f9qz"
NAMED = ("XDG_RUNTIME_DIR", "KRB5CCNAME", "SSH_AUTH_SOCK")
"""What a configuration of `ssh` may name as `${NAME}`, or use for its login."""
PACKAGE = LaunchPackage(
    {"name": "worker"},
    {"ANTHROPIC_API_KEY": API_KEY, "SUBAGENT_RUN_TOKEN": "token-5678"},
    "/",
    "Read 4b1f-7731.",
)


@pytest.fixture
def run(store: RunStore) -> RunPaths:
    """A run that is about to be handed over."""
    return store.create(make_request(RUN_ID))


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which an `ssh` leaves what it was given, and the file `says`, by which it ends."""
    home = tmp_path / "ssh"
    home.mkdir()
    program = f"#!/bin/sh\ncd {home}; printf '%s\\n' \"$@\" > argv; env > env; cat > stdin; . ./says\n"
    write_program(home / "ssh", program)
    (home / "says").write_text("exit 0", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", API_KEY)
    for name in NAMED:
        monkeypatch.setenv(name, "/run/user/7/it")
    return home


def test_ssh_is_given_the_key_alone_and_no_word_of_the_run(run: RunPaths, ssh: Path) -> None:
    SshLauncher("build7", "/opt/my python").reserve(run).start(PACKAGE)
    argv, key = (ssh / "argv").read_text("utf-8"), (ssh / "stdin").read_text("utf-8")
    *options, host, command = argv.splitlines()
    assert options[-1] == "--" and host == "build7" and "ForwardAgent=no" in options
    assert shlex.split(command)[0] == "/opt/my python"
    for text in (argv, (ssh / "env").read_text("utf-8"), run.sealed.path.read_bytes().decode("latin-1")):
        assert not [each for each in (API_KEY, "4b1f-7731", "token-5678", key) if each in text]
    assert {f"{name}=/run/user/7/it" for name in NAMED} <= set((ssh / "env").read_text("utf-8").splitlines())
    assert unseal(run, key)["environment"] == PACKAGE.environment
    assert not run.sealed.exists() and not locks.is_held(run.live_lock)


def test_what_ssh_says_is_the_reason_and_nothing_is_left(run: RunPaths, ssh: Path) -> None:
    (ssh / "says").write_text('printf "\\033[2JNo route\\nto host" >&2; exit 255', encoding="utf-8")
    with pytest.raises(LaunchFailed, match=r"build7 did not take it .*No route to host") as refused:
        SshLauncher("build7").reserve(run).start(PACKAGE)
    assert "\x1b" not in refused.value.sentence
    assert not run.sealed.exists() and not locks.is_held(run.live_lock)


def test_a_disk_that_refuses_is_the_reason_too(run: RunPaths) -> None:
    run.sealed.path.mkdir()
    with pytest.raises(LaunchFailed, match="sealed could not be written"):
        SshLauncher("build7").reserve(run).start(PACKAGE)


def test_a_host_that_was_given_no_key_says_so_to_its_starter(run: RunPaths) -> None:
    command = SshLauncher("build7").module("process.node_start", str(run.directory))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "its key did not come" in done.stderr


def test_a_host_on_which_no_run_can_be_says_so_to_its_starter(run: RunPaths) -> None:
    code = f"""
        import os
        del os.pidfd_open
        from subagent_server.process.node_start import become_shim
        raise SystemExit(become_shim({str(run.directory)!r}))
    """
    done = run_python(code)
    assert done.returncode == EXIT_SECOND_SHIM and "a Python with pidfd_open" in done.stderr


@pytest.mark.parametrize("key", ["", "no hex", "00" * 32, "00"])
def test_a_package_opens_by_its_own_key_alone(run: RunPaths, key: str) -> None:
    seal(run, PACKAGE)
    with pytest.raises(ValueError):
        unseal(run, key)


def test_a_package_of_another_run_does_not_open(store: RunStore, run: RunPaths) -> None:
    other = store.create(make_request(OTHER))
    key = seal(run, PACKAGE)
    other.sealed.path.write_bytes(run.sealed.path.read_bytes())
    with pytest.raises(ValueError, match="sealed package"):
        unseal(other, key)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        pytest.param("exec sleep 60", r"ssh did not answer in 0\.5 s", id="late"),
        pytest.param("sleep 60 &", r"ssh did not answer in 0\.5 s", id="one that it leaves holds its output"),
        pytest.param("exec >&- 2>&-; sleep 60", r"ssh did not answer in 0\.5 s", id="late, without output"),
        pytest.param("exec yes", "more than 1 MiB", id="endless"),
        pytest.param("exec yes >&2", "more than 1 MiB", id="endless complaints"),
    ],
)
def test_a_program_without_an_end_is_ended_and_named(
    ssh: Path, monkeypatch: pytest.MonkeyPatch, says: str, why: str
) -> None:
    monkeypatch.setattr(remote, "_MOST_BYTES", 1 << 20)
    (ssh / "says").write_text(says, encoding="utf-8")
    with pytest.raises(NoAnswer, match=why):
        call("ssh", seconds=0.5)


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(NoAnswer, match="sbatch-of-nobody"):
        call("sbatch-of-nobody")


def test_no_program_of_the_working_copy_around_the_directory_is_started(
    ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in (ssh / ".git", ssh / "part"):
        directory.mkdir()
    monkeypatch.chdir(ssh / "part")
    monkeypatch.setenv("PATH", str(ssh))
    with pytest.raises(NoAnswer, match="a run can write it"):
        call("ssh")
    assert not (ssh / "argv").exists()


@pytest.mark.parametrize("host", ["-oProxyCommand=id", "a b", "a;id", "$(id)", "a/b", "", "a\n", "x" * 300])
def test_a_name_that_could_be_more_than_a_host_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="launcher"):
        read_settings(environment={"SUBAGENT_LAUNCHER": f"ssh:{host}"}, cwd=tmp_path)
