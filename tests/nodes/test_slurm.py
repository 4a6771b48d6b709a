"""Runs on a real Slurm of three nodes live, ask, end and die as they do here, and nothing is done twice."""

from pathlib import Path

from tests.helpers.turns import asks, says
from tests.helpers.world import World

SECRET = "sk-nodes-9d1f7c3a5b"


def holds(root: Path, secret: str) -> list[str]:
    """Return the files below a directory that hold a text."""
    found = []
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink() and secret.encode() in file.read_bytes():
            found.append(str(file))
    return found


def test_a_run_on_a_node_asks_is_answered_and_ends(world: World) -> None:
    world.play(asks("Which colour?"), says("Blue it is."))
    world.agent()
    run_id = world.start()
    world.asking(run_id)
    shown = world.cli("show", run_id).stdout
    assert "n1" in shown or "n2" in shown or "n3" in shown, shown
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "Blue it is."
