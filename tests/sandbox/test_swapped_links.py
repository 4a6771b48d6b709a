"""A program that swaps a directory for a link leads no tool out of the working directory, and no box."""

import os
import subprocess
from pathlib import Path

import pytest

from subagent_server.sandbox.box import Rules, build_box
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.verify import start_gated
from tests.helpers.bubblewrap import settings
from tests.helpers.files import write_program
from tests.helpers.turns import Turn, calls, says, shell, tool_results, use
from tests.helpers.world import BOUND, World

CANARY = "CANARY-51c9"
RACER = """
mkdir d; echo inside > d/file
(while :; do mv -T d e; ln -s {outside} d; rm d; mv -T e d; done) >/dev/null 2>&1 &
"""
CALLS = 10
"""In each turn; the editor's in the order of a turn, the searches all at once."""


def turn(number: int) -> Turn:
    """Return a turn that reads, writes and searches the swapped directory."""
    edits = ({"command": "view"}, {"command": "create", "file_text": f"written {number}\n"})
    edit = [use("str_replace_based_edit_tool", path="d/file", **edits[each % 2]) for each in range(CALLS - 4)]
    search = [use("grep", pattern="CANARY|inside", path="d"), use("glob", pattern="d/*"), use("ls", path="d")]
    return calls(*edit, *search, use("bash", command="cat d/file"))


@pytest.mark.parametrize(
    "turns", [15, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])]
)
def test_no_tool_reads_or_writes_through_a_directory_that_becomes_a_link(world: World, turns: int) -> None:
    outside = world.home / "outside"
    outside.mkdir()
    canary = outside / "file"
    canary.write_text(CANARY, encoding="utf-8")
    world.agent(sandbox="bwrap", limits={"maxTurns": turns + 5})
    simulator = world.play(
        shell(RACER.format(outside=outside)), *(turn(number) for number in range(turns)), says("Done.")
    )
    run_id = world.start()
    world.ended(run_id, BOUND + 5.0 * turns)
    assert world.completed(run_id) == "Done."
    seen = [text for request in simulator.requests[1:] for text in tool_results(request.body)]
    assert len(seen) == 1 + turns * CALLS
    assert not [text for text in seen if CANARY in text]
    assert any("inside" in text or "written" in text for text in seen), "the tools were never inside"
    assert canary.read_text(encoding="utf-8") == CANARY
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.mark.parametrize("moment", ["before", "meanwhile"], ids="a box is built {}".format)
@pytest.mark.parametrize("named", ["cwd", "read", "write"])
def test_no_box_shows_what_a_link_of_another_run_leads_to(tmp_path: Path, named: str, moment: str) -> None:
    project, place, other = tmp_path / "project", tmp_path / "project" / "part", tmp_path / "other"
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret").write_text(CANARY, encoding="utf-8")
    for directory in (place, other):
        directory.mkdir(parents=True)
    swap = f"mv {place} {project}/old; ln -s {tmp_path}/private {place}"
    found = settings().get("SUBAGENT_BWRAP", "/usr/bin/bwrap")
    swapping = write_program(
        tmp_path / "bwrap", f'#!/bin/sh\n{swap if moment == "meanwhile" else ""}\nexec {found} "$@"\n'
    )
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.defpath, "SUBAGENT_BWRAP": str(swapping)}
    rules = Rules(
        cwd=place if named == "cwd" else other,
        environment=environment,
        written=[project],
        read=[place] if named == "read" else [],
        write=[place] if named == "write" else [],
    )
    if moment == "before":
        subprocess.run(["sh", "-c", swap], check=True)
    with pytest.raises(BoxRefused):
        start_gated(build_box(rules), ["ls", str(place)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.parametrize("verb", ["rerun", "continue"])
def test_no_run_works_again_where_a_link_of_another_run_leads(world: World, verb: str) -> None:
    (world.work / "part").mkdir()
    (world.home / "private").mkdir()
    world.agent_saying(says("Done."), sandbox="bwrap", tools="Bash")
    run_id = world.start(cwd=str(world.work / "part"))
    assert world.completed(run_id) == "Done."
    world.play(shell(f"mv part away; ln -s {world.home / 'private'} part"), says("Done."))
    assert world.completed(world.start()) == "Done."
    world.gone(run_id)
    simulator = world.play(says("Done."))
    assert "leads through a link now" in world.refused(verb, run_id, *(["Go on."] * (verb == "continue")))
    assert not simulator.requests
