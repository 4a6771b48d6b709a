"""A placeholder holds a missing name as long as somebody uses it, and nothing else is ever removed."""

import fcntl
import os
from pathlib import Path

import pytest

from subagent_server.sandbox.placeholders import NotHeld, Placeholders, remove_if_unused
from tests.helpers.processes import Child

HOLD_FOR_EVER = """
    import sys, signal
    from pathlib import Path
    from subagent_server.sandbox.placeholders import Placeholders
    Placeholders().hold(Path(sys.argv[1]))
    print("held", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("name", [".envrc", "commondir"])
def test_a_placeholder_stays_until_its_last_user_has_released_it(tmp_path: Path, name: str) -> None:
    first, second = Placeholders(), Placeholders()
    first.hold(tmp_path / name)
    second.hold(tmp_path / name)
    first.release()
    remove_if_unused(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    second.release()
    assert not any(tmp_path.iterdir())


def test_a_placeholder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ".claude"
    with Child(HOLD_FOR_EVER, path) as process:
        assert process.hear() == "held"
        remove_if_unused(path)
        assert path.is_dir()
    remove_if_unused(path)
    assert not path.exists()


def test_what_is_not_a_placeholder_stays(tmp_path: Path) -> None:
    for name in ("empty", "full", "link", "commondir"):
        if name == "link":
            (tmp_path / name).symlink_to("empty")
        elif name == "commondir":
            (tmp_path / name).write_text("../..\n", encoding="utf-8")
        else:
            (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "full").chmod(0o1500)
    before = sorted(tmp_path.iterdir())
    for path in before:
        remove_if_unused(path)
        with pytest.raises(NotHeld):
            Placeholders().hold(path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_program_that_keeps_a_lock_on_a_placeholder_delays_no_run_for_long(tmp_path: Path) -> None:
    path = tmp_path / ".envrc"
    with Child(HOLD_FOR_EVER, path) as process:
        assert process.hear() == "held"
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(NotHeld, match="another program keeps a lock on it"):
        Placeholders().hold(path)
    os.close(lock)
    remove_if_unused(path)
    assert not path.exists()
