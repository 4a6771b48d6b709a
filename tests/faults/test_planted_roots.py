"""A root of our own in which somebody has planted: no look changes or shows what is outside."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from subagent_server.cli.console import follow
from subagent_server.extensions.simulator import Simulator
from tests.faults.canaries import SECRET
from tests.faults.planted import AGENT, FIFO, FILE_KINDS, state, to_json
from tests.faults.planted import request as asked
from tests.faults.planted_lies import (
    ESCAPES,
    HELD_LIES,
    LIES,
    PLANTED_NAMES,
    ROOT_NAMES,
    TEXTS,
    Place,
    plant_command,
    plant_lies,
    plant_many,
    plant_root_name,
)
from tests.faults.scene import HEALTHY, Scene, sentence
from tests.helpers import warm
from tests.helpers.raw_server import request, tool_call
from tests.helpers.repositories import git
from tests.helpers.scale import WHOLE, sampled, times
from tests.helpers.turns import says

NAMED = [kind for kind in FILE_KINDS if kind.file]
SAMPLE = sampled(FILE_KINDS[::13], 14)
"""A few of each file and of each shape: for verbs that take one run, and a process each."""
MARKS, ENTRIES = times(8_000, 100_000), times(400, 5_000)
LOUD = {character for character in ESCAPES if not character.isprintable()}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A home with a root of our own."""
    with ExitStack() as stack:
        yield Scene(tmp_path, stack, ours=True)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if there is such a place: a disk takes minutes to forget 100,000 names."""
    place = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="subagent-planted-", dir=place if place.is_dir() else tmp_path))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    "verbs",
    [
        "ls --json --all, stats, inbox, ls --tree",
        "doctor --runs",
        "prune --older-than 1d",
        "stop NAMED, rm NAMED",
    ],
    ids=lambda verbs: verbs.split()[0],
)
def test_a_verb_over_every_planted_run_ends_with_reasons_and_reaches_nothing_outside(
    scene: Scene, verbs: str
) -> None:
    planted = scene.plant()
    named = [each.run_id for each in planted if each.file]
    scene.seen()
    for words in (verb.split() for verb in verbs.split(", ")):
        ended = scene.judged(
            *(word for word in words if word != "NAMED"), *(named if "NAMED" in words else [])
        )
        if words[0] == "ls" and "--all" in words:
            rows = {row["runId"]: row for row in ended.json()}
            assert {HEALTHY, *named} <= rows.keys()
            states = [each for each in planted if each.file == "run.meta.json"]
            assert [each for each in states if not rows[each.run_id].get("unreadable")] == []
    assert scene.judged("show", HEALTHY).code == (3 if verbs.startswith("prune") else 0)


def test_a_verb_on_one_planted_run_ends_with_a_reason_and_reaches_nothing_outside(scene: Scene) -> None:
    planted = scene.plant(SAMPLE)
    scene.seen()
    verbs = ("show", "show --json", "logs", "logs --json", "logs -f", "wait --timeout 0.2", "stop", "rm")
    for turn, verb in enumerate(verbs):
        for each in planted if WHOLE else planted[turn % 2 :: 2]:
            scene.call(*verb.split(), each.run_id)
    scene.judged("ls")


def test_no_tool_and_no_resource_reaches_anything_outside(scene: Scene) -> None:
    planted = scene.plant()
    for each in planted:
        if each.base == "waiting" and each.file != "live.lock":
            scene.hold(each.run_id)
    scene.seen()
    with scene.server() as ask:
        ask(tool_call(0, "list_runs", limit=500), request(0, "resources/list"))
        for each in planted:
            ask.looks_at(each.run_id)
        scene.check(*ask.heard)
        for each in planted:
            ask(
                tool_call(0, "reply_subagent", runId=each.run_id, answer="blue"),
                tool_call(0, "wait_for_runs", runIds=[each.run_id], waitSeconds=0),
                tool_call(0, "stop_run", runId=each.run_id),
            )
        scene.check(*ask.heard)
        listed = ask.tool("list_runs", limit=500)["structuredContent"]["runs"]
        assert HEALTHY in [row["runId"] for row in listed]


def warm_way() -> dict[str, str]:
    """Return the variables by which a run is forked from the zygote of the tests."""
    return warm.settings() | {"SUBAGENT_WARM": "1"}


@pytest.mark.parametrize("is_warm", sampled([True, False], 1))
def test_a_run_starts_works_and_ends_beside_planted_ones(scene: Scene, is_warm: bool) -> None:
    scene.plant()
    for name in (".removed", ".index", ".backoff"):
        plant_root_name(scene.root, name, "dirlink", scene.outside)
    scene.seen()
    with Simulator({"turns": [says("It is done.")]}) as simulator:
        env = {"ANTHROPIC_BASE_URL": simulator.base_url, **(warm_way() if is_warm else {})}
        ended = scene.call("run", AGENT, "Do it.", env=env)
    assert (ended.code, ended.out) == (0, "It is done.\n"), str(ended)
    scene.check(ended.said)


@pytest.mark.parametrize("queue", ["root.queue kind", f"root.queue/{HEALTHY} fifo", "root.queue dirlink"])
def test_what_stands_in_the_place_of_a_slot_holds_up_nobody(scene: Scene, queue: str) -> None:
    (scene.root / ".slots" / "root.queue").mkdir()
    for planted in ("root.0 fifo", "root.1 link", "starting.0 dangling", queue):
        name, shape = planted.split()
        plant_root_name(scene.root, f".slots/{name}", shape, scene.outside, HEALTHY)
    scene.seen()
    with Simulator({"turns": [says("It is done.")]}) as simulator:
        env = {"ANTHROPIC_BASE_URL": simulator.base_url, **warm_way()}
        ended = scene.call("run", AGENT, "Do it.", env=env)
    assert (ended.code, ended.out) == (0, "It is done.\n"), str(ended)
    scene.check(ended.said)


@pytest.mark.parametrize("name", ROOT_NAMES)
def test_a_planted_name_of_the_root_leads_nobody_out_of_it(tmp_path: Path, name: str) -> None:
    for shape in [shape for planted, shape in PLANTED_NAMES if planted == name]:
        (tmp_path / shape).mkdir()
        with ExitStack() as stack:
            scene = Scene(tmp_path / shape, stack, ours=True)
            kinds = [kind for kind in NAMED if kind.shape == "kind" and kind.file in ("shim.json", FIFO)]
            runs = [each.run_id for each in scene.plant(kinds)]
            plant_root_name(scene.root, name, shape, scene.outside, *runs, HEALTHY, "root.0")
            scene.seen()
            for words in (
                ["ls"],
                ["show", runs[0]],
                ["run", "refused", "Do it.", "--detach"],
                ["stop", *runs],
            ):
                scene.judged(*words)
            for words in (["doctor", "--runs"], ["stats"], ["rm", *runs], ["prune", "--older-than", "1d"]):
                scene.judged(*words)


def test_lies_about_processes_end_nobody(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "STOP_WAIT_SECONDS", 2.0)  # 12 in earnest
    ids = plant_lies(scene.root, LIES, scene.outside, scene.work)
    for name in HELD_LIES:
        scene.hold(ids[name])
    scene.seen()
    listed = scene.judged("ls", "--json", "--all").json()
    assert set(ids.values()) <= {row["runId"] for row in listed}
    with scene.server() as ask:
        for run_id in ids.values():
            ask(tool_call(0, "check_status", runId=run_id), tool_call(0, "stop_run", runId=run_id))
    scene.check()
    for words in (["doctor", "--runs"], ["rm", *ids.values()], ["prune", "--older-than", "1d"]):
        scene.judged(*words)


def test_hostile_texts_and_figures_are_a_reason_or_are_shown_escaped(scene: Scene) -> None:
    ids = plant_lies(scene.root, TEXTS, scene.outside, scene.work)
    scene.seen()
    listed = scene.judged("ls", "--json", "--all")
    assert {HEALTHY, *ids.values()} <= {row["runId"] for row in listed.json()}
    said = [listed, *(scene.call(*words) for words in (["ls"], ["inbox"], ["stats"], ["doctor", "--runs"]))]
    for number, run_id in enumerate(ids.values()):
        verbs = ("show", "logs", "wait", "stop")
        said += [scene.call(verb, run_id) for verb in (verbs if WHOLE else verbs[number % 2 :: 2])]
    loud = [ended for ended in said if LOUD & set(ended.said)]
    assert loud == [], str(loud[0])
    with scene.server() as ask:
        for run_id in ids.values():
            ask.looks_at(run_id)
        ask(tool_call(0, "list_runs"), tool_call(0, "wait_for_runs", waitSeconds=0))
    assert max(map(len, ask.heard)) < 100_000, "a parent pays for all that it is told"
    scene.check(*ask.heard)


def test_a_stored_command_is_carried_out_only_if_the_caller_says_so(scene: Scene) -> None:
    place = Place(scene.root, "20260102-command", scene.outside, scene.work)
    plant_command(place)
    scene.seen()
    assert scene.judged("continue", place.run_id, "Go on.").code != 0
    with scene.server() as ask:
        refused = ask.tool("continue_run", runId=place.run_id, prompt="Go on.")
        assert "storedAgent" in sentence(refused)
    scene.check()


def test_a_run_that_continues_a_planted_one_gets_nothing_from_outside(scene: Scene) -> None:
    shapes = {
        "transcript.jsonl": ("link", "hardlink", "fifo"),
        "inputs/01-note.txt": ("link",),
        "inputs": ("dirlink",),
    }
    planted = scene.plant([kind for kind in NAMED if kind.shape in shapes.get(kind.file, ())])
    for each in planted:
        if each.file != "transcript.jsonl":  # without a conversation it is told what that run was given
            (scene.root / each.run_id / "transcript.jsonl").unlink()
    scene.seen()
    with Simulator({"turns": [says("It is done.")]}) as simulator:
        for each in planted:
            env = {"ANTHROPIC_BASE_URL": simulator.base_url, **warm_way()}
            scene.check(scene.call("continue", each.run_id, "Go on.", env=env).said)
        assert SECRET not in str([sent.body for sent in simulator.requests])


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "foreign"])
def test_very_many_marks_and_entries_only_take_time(memory: Path, ours: bool) -> None:
    with ExitStack() as stack:
        (memory / "home").mkdir()
        scene = Scene(memory / "home", stack, ours=ours)
        plant_many(scene.root, MARKS, ENTRIES)
        (scene.root / ".index").mkdir()
        for name in ("newest.json", "runs.sqlite3"):
            (scene.root / ".index" / name).symlink_to(scene.outside.file())
        scene.seen()
        for words in (["ls"], ["inbox"], ["stats"], ["doctor", "--runs"], ["prune", "--older-than", "1d"]):
            ended = scene.call(*words)
            assert ended.code in (0, 1) or not ours, str(ended)
        with scene.server() as ask:
            ask(tool_call(0, "list_runs"), tool_call(0, "wait_for_runs"), request(0, "resources/list"))
        scene.check(*ask.heard)


def test_a_cloned_repository_writes_nothing_at_the_first_look(tmp_path: Path) -> None:
    """A committed `runs/` whose log is a link to a start file of the shell, and a summary to be put there."""
    home, origin = tmp_path / "home", tmp_path / "origin"
    run = origin / "runs" / "20260101-000000-000-aaaaaa"
    for directory in (home, origin / "runs" / ".changes", run):
        directory.mkdir(parents=True)
    (home / ".bashrc").write_text("# mine\n", encoding="utf-8")
    with ExitStack() as stack:
        (tmp_path / "scene").mkdir()
        scene = Scene(tmp_path / "scene", stack, ours=True)
        _commit_planted(origin, run, home)
        clone = tmp_path / "clone"
        git("clone", "--quiet", origin, clone)
        assert (clone / "runs" / run.name / "run.log").is_symlink()
        for verb in ("ls", "prune"):
            scene.call(verb, cwd=clone, env={"HOME": str(home)}, but="SUBAGENT_RUNS")
        assert (home / ".bashrc").read_text(encoding="utf-8") == "# mine\n"
        assert not (clone / "runs" / run.name / "exit.json").exists()


def _commit_planted(origin: Path, run: Path, home: Path) -> None:
    """Commit a completed run, with a link to the shell's start file in the place of its log."""
    told = state(run.name, "completed") | {"summary": f"x\ntouch {home}/PWNED", "launch": None}
    (run / "run.meta.json").write_bytes(to_json(told))
    (run / "request.json").write_bytes(to_json(asked(run.name, origin)))
    (run / "run.log").symlink_to(home / ".bashrc")
    (run.parent / ".changes" / run.name).touch()
    git("init", "--quiet", origin)
    git("-C", origin, "add", "--force", "runs")
    git("-C", origin, "commit", "--quiet", "--message", "A project")
