"""A runs root that we did not make can be looked at and nothing more, whatever is in it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.canaries import tree
from tests.faults.planted import AGENT, FIFO, Kind
from tests.faults.planted_lies import (
    LIES,
    PLANTED_NAMES,
    ROOT_SHAPES,
    TEXTS,
    Place,
    plant_command,
    plant_lies,
    plant_root_name,
)
from tests.faults.scene import HEALTHY, TRUST, Scene, sentence, unchanged
from tests.helpers.raw_server import request, tool_call
from tests.helpers.scale import WHOLE


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A home with a root that a clone brought along."""
    with ExitStack() as stack:
        yield Scene(tmp_path, stack, ours=False)


def test_looking_at_a_foreign_root_shows_its_runs_as_they_say_and_leaves_it_to_the_byte(scene: Scene) -> None:
    planted = scene.plant()
    lies = plant_lies(scene.root, LIES | TEXTS, scene.outside, scene.work)
    before = tree(scene.root)
    scene.seen()
    rows = {row["runId"]: row for row in scene.judged("ls", "--json", "--all").json()}
    assert {HEALTHY, *lies.values(), *(each.run_id for each in planted if each.file)} <= rows.keys()
    for each in planted:
        row = rows.get(each.run_id, {})
        if each.base in ("running", "waiting") and "unreadable" not in row:
            at_work = ("running", "waiting_parent_reply")
            assert row["status"] in at_work and not row.get("live"), (str(each), row)
    for words in (["ls"], ["stats"], ["inbox"], ["doctor", "--runs"], ["ls", "--tree"]):
        scene.judged(*words)
    verbs = ("show", "show --json", "logs", "logs --json")
    for number, run_id in enumerate((HEALTHY, *lies.values(), *(each.run_id for each in planted[::10]))):
        for verb in verbs if WHOLE else (verbs[number % 4],):
            scene.call(*verb.split(), run_id)
    assert scene.judged("show", HEALTHY).code == 0
    unchanged(scene.root, before)


def test_the_tools_and_resources_show_a_foreign_root_and_change_nothing_in_it(scene: Scene) -> None:
    planted = scene.plant()
    before = tree(scene.root)
    scene.seen()
    with scene.server() as ask:
        ask(tool_call(0, "list_runs", limit=500), request(0, "resources/list"))
        for each in planted:
            ask.looks_at(each.run_id)
        for each in planted[::5]:
            for tool, more in (
                ("reply_subagent", {"answer": "blue"}),
                ("stop_run", {}),
                ("continue_run", {}),
            ):
                sentence(ask.tool(tool, runId=each.run_id, **more))
        running = next(each.run_id for each in planted if each.file == "worker.out")
        for tool, more in (("stop_run", {}), ("continue_run", {"prompt": "Go on."})):
            assert TRUST in sentence(ask.tool(tool, runId=running, **more))
        assert TRUST in sentence(ask.tool(f"run_{AGENT}", prompt="Do it."))
    scene.check(*ask.heard)
    unchanged(scene.root, before)


def test_a_verb_that_changes_is_refused_in_a_foreign_root_and_names_what_adopts_it(scene: Scene) -> None:
    kinds = (("worker.out", "running"), (FIFO, "waiting"))
    planted = scene.plant([Kind(file, "fifo", base) for file, base in kinds])
    running, waiting = (each.run_id for each in planted)
    before = tree(scene.root)
    scene.seen()
    for words in (
        ["run", AGENT, "Do it.", "--detach"],
        ["stop", running],
        ["reply", waiting, "blue"],
        ["continue", HEALTHY, "Go on."],
        ["rm", HEALTHY],
        ["prune"],
        ["wait", running, "--timeout", "1"],
        ["inbox"],
    ):
        refused = scene.judged(*words)
        assert refused.code not in (0, 124) and TRUST in refused.err, str(refused)
    scene.judged("prune", "--dry-run")
    unchanged(scene.root, before)


def test_lies_in_a_foreign_root_end_nobody_and_a_stored_command_is_not_carried_out(scene: Scene) -> None:
    ids = plant_lies(scene.root, LIES, scene.outside, scene.work)
    command = Place(scene.root, "20260102-command", scene.outside, scene.work)
    plant_command(command)
    scene.seen()
    for words in (["ls", "--all"], ["doctor", "--runs"], ["stop", *ids.values()], ["rm", *ids.values()]):
        scene.judged(*words)
    assert TRUST in scene.judged("continue", command.run_id, "Go on.").err
    assert scene.judged("continue", command.run_id, "Go on.", "--stored-agent").code != 0


@pytest.mark.parametrize("shape", ROOT_SHAPES)
def test_planted_names_of_a_foreign_root_are_not_followed(tmp_path: Path, shape: str) -> None:
    for name in [name for name, planted in PLANTED_NAMES if planted == shape]:
        (tmp_path / name).mkdir()
        with ExitStack() as stack:
            scene = Scene(tmp_path / name, stack, ours=False)
            plant_root_name(scene.root, name, shape, scene.outside, HEALTHY)
            before = tree(scene.root)
            scene.seen()
            for words in (["ls"], ["show", HEALTHY], ["stats"], ["doctor", "--runs"], ["prune"]):
                scene.judged(*words)
            unchanged(scene.root, before)
