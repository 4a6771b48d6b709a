"""Runs as jobs, with programs that play Slurm: nothing is lost between its answers, no secret is given."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.process import slurm
from subagent_server.process.launcher import LocalLauncher, Sight
from subagent_server.process.remote import passed_on
from subagent_server.run.agent_definition import Placement
from subagent_server.run.states import Status
from subagent_server.settings import read_settings
from subagent_server.verbs.own_settings import BadSlurmSettings, launcher_for
from tests.helpers.fake_slurm import FakeSlurm, fake_slurm
from tests.helpers.runs import RUN_ID
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World

PROMPT = "Read the letter 4b1f-7731 first."


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm as this process finds it."""
    made = fake_slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setattr(slurm, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "_asked", {"until": -1.0, "sights": None})
    return made


@pytest.fixture
def world(tmp_path: Path, engine: FakeSlurm) -> Iterator[World]:
    """A world whose runs are jobs."""
    (tmp_path / "world").mkdir()
    made = World(tmp_path / "world")
    made.environment |= {"SUBAGENT_LAUNCHER": "slurm", "SUBAGENT_LEASE": "6", "PATH": engine.path}
    yield made
    engine.say("run")
    made.close()
    for process in slurm._ending:
        process.wait(BOUND)


def test_a_job_works_asks_and_ends_and_no_secret_is_in_it(world: World, engine: FakeSlurm) -> None:
    world.play(asks("Which?"), says("That one."))
    world.agent(placement={"partition": "long", "cpus": 2, "memory": "4G", "time": "2:00:00"})
    run_id = world.start_asking(PROMPT)
    seen = world.look(run_id)
    assert (seen.live, seen.node, seen.meta.launch and seen.meta.launch.kind) == (True, "n7", "slurm")
    assert not world.paths(run_id).sealed.exists()
    assert world.reply(run_id, "that").node == "n7"
    assert world.completed(run_id) == "That one."
    wait_for(lambda: world.look(run_id).live is False, BOUND, "the end of its tree")
    given = [engine.job(run_id, what) for what in ("argv", "script", "environment", "own")]
    assert not [text for text in given if API_KEY in text or PROMPT in text]
    assert len(engine.job(run_id, "argv").split()) == 2, "an option, and the descriptor of the environment"
    named = dict(pair.split("=", 1) for pair in engine.job(run_id, "environment").split("\0") if pair)
    assert named.keys() == {*passed_on(), "SUBAGENT_PACKAGE_KEY"}
    options = [line for line in engine.job(run_id, "script").splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --no-requeue", "#SBATCH --partition=long", "#SBATCH --mem=4G"} <= set(options)
    files = b"".join(f.read_bytes() for f in world.paths(run_id).directory.iterdir() if f.is_file())
    assert named["SUBAGENT_PACKAGE_KEY"].encode() not in files and API_KEY.encode() not in files


def test_a_run_has_the_devices_and_the_scratch_of_its_job(world: World, engine: FakeSlurm) -> None:
    shown = "echo $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES $TMPDIR"
    world.agent(prompt="", runner="command", command="sh", args=["-c", shown], sandbox="none")
    world.environment |= {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "TMPDIR": "/tmp"}
    run_id = world.start("Look.")
    assert world.completed(run_id) == f"3 {engine.home / 'jobs' / run_id}"


def test_a_starter_killed_between_sbatch_and_its_reply_loses_nothing(world: World, engine: FakeSlurm) -> None:
    world.play(says("Done."))
    world.agent()
    engine.say("kill")
    assert world.cli("run", "worker", "Do it.", "--detach").returncode != 0
    (run_id,) = world.store.run_ids()
    assert world.completed(run_id) == "Done."


def test_a_refusal_is_the_end_of_the_run_with_its_words(world: World, engine: FakeSlurm) -> None:
    world.agent()
    engine.say("refuse")
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "launch_failed" and "Invalid account" in message
    assert not world.paths(run_id).sealed.exists()


def test_a_job_that_is_taken_with_an_error_leaves_the_queue(world: World, engine: FakeSlurm) -> None:
    world.agent()
    engine.say("queue late")
    run_id = world.start()
    assert world.failed(run_id)[0] == "launch_failed"
    wait_for(lambda: engine.job(run_id, "state") == "CANCELLED", BOUND, "scancel")


def test_a_job_in_the_queue_is_shown_and_stopped_there(world: World, engine: FakeSlurm) -> None:
    world.agent()
    engine.say("queue")
    run_id = world.start()
    assert "waits in Slurm (Priority)" in world.cli("ls").stdout
    assert "waits in Slurm (Priority)" in world.cli("show", run_id).stdout
    assert world.stop(run_id).meta.status is Status.STOPPED
    wait_for(lambda: engine.job(run_id, "state") == "CANCELLED", BOUND, "scancel")
    wait_for(lambda: world.look(run_id).live is False, BOUND, "the end that a second look finds")
    assert json.loads(world.paths(run_id).exit.read(4096)) == {"workerStarted": False, "treeGone": True}


def test_a_silent_engine_keeps_nobody_waiting_and_proves_nothing(world: World, engine: FakeSlurm) -> None:
    world.agent()
    engine.say("queue")
    run_id = world.start()
    engine.say("silent")
    shown = world.cli("show", run_id)
    assert shown.returncode == 0 and "Slurm does not answer" in shown.stdout
    engine.say("run")
    world.stop(run_id)


@pytest.mark.usefixtures("engine")
def test_slurm_is_asked_from_the_root_directory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # as shims, and servers of some clients
    assert slurm.sight(RUN_ID) == Sight("gone", "Slurm says nothing of it")


def test_a_suspended_job_waits_in_slurm(engine: FakeSlurm) -> None:
    (engine.home / "squeue").write_text(f"#!/bin/sh\necho '{RUN_ID}|SUSPENDED|None'", encoding="utf-8")
    assert slurm.sight(RUN_ID) == Sight("waiting", "waits in Slurm (SUSPENDED)")


def test_a_job_in_a_hidden_partition_waits_in_slurm(engine: FakeSlurm) -> None:
    words = f"case $* in *--all*) echo '{RUN_ID}|PENDING|Priority';; esac"
    (engine.home / "squeue").write_text(f"#!/bin/sh\n{words}", encoding="utf-8")
    assert slurm.sight(RUN_ID) == Sight("waiting", "waits in Slurm (Priority)")


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "NODE_FAIL"])
def test_what_slurm_alone_decides_proves_nothing_of_a_node(engine: FakeSlurm, state: str) -> None:
    """It says so of a job on a node that it gave up, where the run still acts."""
    (engine.home / "squeue").write_text(f"#!/bin/sh\necho '{RUN_ID}|{state}|None'", encoding="utf-8")
    assert slurm.sight(RUN_ID) == Sight("gone", f"Slurm says {state}")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("COMPLETING  None       N/A", "Its job was cancelled in Slurm"),
        ("COMPLETING  None       2026-11-26T15:20:39", "Slurm preempted the run for another job"),
        ("COMPLETING  TimeLimit  N/A", "Slurm's time limit ended the run"),
        ("NODE_FAIL   NodeDown   N/A", "Slurm had given its node up (NODE_FAIL)"),
        ("", None),
    ],
)
def test_a_job_that_gets_term_is_told_why(
    engine: FakeSlurm, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str | None
) -> None:
    (engine.home / "squeue").write_text(f"#!/bin/sh\necho '{said}'", encoding="utf-8")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    why = slurm.why_ended()
    assert why is None if sentence is None else why is not None and why[1].startswith(sentence)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ('{"account": "lab", "qos": "high", "options": ["--reservation=night"]}', 0o600, None),
        ('{"options": ["--job-name=x"]}', 0o600, "--job-name=x is set by the launcher itself"),
        ('{"options": ["--outp=x"]}', 0o600, "--outp=x is set by the launcher itself"),
        ('{"options": ["--wait"]}', 0o600, "--wait is set by the launcher itself"),
        ('{"options": ["--comment=a b"]}', 0o600, "options.0"),
        ('{"python": "python3"}', 0o600, "python"),
        ('{"acount": "lab"}', 0o600, "acount"),
        ("[]", 0o600, "the whole"),
        ("{}", 0o622, "others may write it"),
        ("{}" + " " * (65 << 10), 0o600, "larger than 64 KiB"),
    ],
)
def test_free_options_are_those_of_the_user_alone(
    tmp_path: Path, content: str, mode: int, said: str | None
) -> None:
    file = tmp_path / ".config" / "subagent" / "slurm.json"
    file.parent.mkdir(parents=True)
    file.write_text(content, encoding="utf-8")
    file.chmod(mode)
    settings = read_settings(environment={"HOME": str(tmp_path), "SUBAGENT_LAUNCHER": "slurm"}, cwd=tmp_path)
    asked = Placement(partition="long", memory="4G")
    if said is not None:
        with pytest.raises(BadSlurmSettings, match=said):
            launcher_for(settings, asked, LocalLauncher())
        with pytest.raises(BadSlurmSettings, match=r"^Runs cannot go to ssh:h1, because .*slurm\.json"):
            launcher_for(settings, Placement(on="ssh:h1"), LocalLauncher())
        return
    launcher = launcher_for(settings, asked, LocalLauncher())
    assert isinstance(launcher, slurm.SlurmLauncher)
    assert list(launcher.options) == [
        *("--partition=long", "--mem=4G", "--account=lab", "--qos=high", "--reservation=night")
    ]
