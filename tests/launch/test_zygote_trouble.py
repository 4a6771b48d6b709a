"""Whatever is wrong with the warm process, a run starts all the same; and it leaves when it is not wanted."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from subagent_server.host import failpoints, locks, processes
from subagent_server.host.directory import Entry
from subagent_server.launch import handover
from subagent_server.launch.asking import Wanted, connected, give_order
from subagent_server.launch.image_key import image_key
from tests.helpers import warm
from tests.helpers.processes import REPOSITORY, Child, run_python
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill
from tests.launch.warm_place import WarmPlace, children_of, is_spare

ASK = """
    import ctypes, sys
    from pathlib import Path
    from subagent_server.launch.asking import Wanted
    from subagent_server.launch.warm import WarmStart
    if sys.argv[2] == "fenced":
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, as sandboxes do
    nothing = open("/dev/null", "r+")
    wanted = Wanted("command", ["subagent"], ["subagent", "--version"], {})
    called = WarmStart(Path(sys.argv[1]), 60).connect()
    given = {number: nothing.fileno() for number in (0, 1, 2)}
    print(called is not None and called.order(wanted, given) and called.go())
"""


def stopped(zygote: processes.Identity, place: WarmPlace) -> None:
    """A warm process that hangs."""
    processes.send_signal(zygote, signal.SIGSTOP)


def killed(zygote: processes.Identity, place: WarmPlace) -> None:
    """A socket that nobody listens on."""
    kill(zygote)


def opened(zygote: processes.Identity, place: WarmPlace) -> None:
    """A directory that others may enter."""
    place.directory.chmod(0o755)


def replaced(zygote: processes.Identity, place: WarmPlace) -> None:
    """A link in the place of the directory."""
    place.directory.rename(place.directory.with_name("elsewhere"))
    place.directory.symlink_to("elsewhere")


@pytest.mark.parametrize("trouble", [stopped, killed, opened, replaced])
def test_a_run_is_started_plainly_where_the_warm_process_is_in_trouble(
    world: World, place: WarmPlace, trouble: Callable[[processes.Identity, WarmPlace], None]
) -> None:
    world.agent()
    world.play(asks("Go on?"), says("Done."))
    zygote = place.start()
    trouble(zygote, place)
    run_id, was_forked = place.started()
    assert not was_forked
    if trouble in (stopped, killed):
        wait_for(lambda: not processes.is_alive(zygote), BOUND, "the end of what was in the way")
    else:
        kill(zygote)
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."


def spare_of(zygote: processes.Identity) -> processes.Identity:
    """Return the process that was forked for the next start."""
    (spare,) = wait_for(
        lambda: [child for child in children_of(zygote) if is_spare(child, zygote)], BOUND, "a spare process"
    )
    return spare


def test_a_run_is_forked_also_where_the_process_that_was_ready_for_it_is_dead(
    world: World, place: WarmPlace
) -> None:
    world.agent()
    world.play(asks("Go on?"), says("Done."))
    zygote = place.start()
    kill(spare_of(zygote))
    run_id, was_forked = place.started()
    assert was_forked
    next_one = spare_of(zygote)
    kill(zygote)
    wait_for(lambda: not processes.is_alive(next_one), BOUND, "the leave of the spare process")
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."


def test_who_comes_before_the_next_process_is_ready_is_served_by_one_that_is_forked_then(
    place: WarmPlace,
) -> None:
    zygote = place.start()
    with ExitStack() as stack:
        connections = [connected(str(place.directory), image_key()) for _ in range(10)]
        for connection in connections:
            stack.callback(connection.close)
        for connection in connections:
            handover.expect(connection, handover.HERE)

    def only_the_next_is_there() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has left just now
            return [is_spare(each, zygote) for each in children_of(zygote)] == [True]
        return False

    wait_for(only_the_next_is_there, BOUND, "the others to leave, and the next one to be made ready")


def test_of_many_starters_at_once_one_warm_process_comes(place: WarmPlace) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: place.spawn(), range(4)))
    zygote = place.zygote()

    def alone() -> bool:
        return [each for each in processes_of(place) if each != zygote] == []

    wait_for(alone, BOUND, "the others to leave")
    assert processes.is_alive(zygote)


def processes_of(place: WarmPlace) -> list[processes.Identity]:
    """Return every process that was started as the warm process of a place."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just left
        identity = processes.identify(int(entry.name))
        if os.fsencode(place.directory) in words and identity is not None and processes.is_alive(identity):
            found.append(identity)
    return found


def test_a_warm_process_without_work_leaves_and_takes_its_socket_along(place: WarmPlace) -> None:
    zygote = place.start(idle_seconds=1)
    wait_for(lambda: not processes.is_alive(zygote), BOUND, "its leave")
    assert list(place.directory.glob("*.sock")) == []


def test_a_fenced_starter_is_refused(place: WarmPlace) -> None:
    place.start()
    assert run_python(ASK, place.directory, "as usual").stdout == "True\n"
    assert run_python(ASK, place.directory, "fenced").stdout == "False\n"


def test_an_order_without_the_word_to_go_comes_to_nothing(world: World, place: WarmPlace) -> None:
    place.start()
    held = world.home / "lock"
    lock = locks.take(Entry.at(held))
    assert lock is not None
    with closing(connected(str(place.directory), image_key())) as connection:
        order = Wanted("shim", ["x"], ["x", "y"], {}).order([3], leashed=False)
        give_order(connection, order, [lock], cwd="/")
        handover.expect(connection, handover.READY)
    os.close(lock)
    wait_for(lambda: not locks.is_held(Entry.at(held)), BOUND, "the fork to leave")


@pytest.mark.parametrize("point", ["zygote.asked", "zygote.forked"])
def test_a_run_is_started_once_wherever_the_warm_process_dies(
    world: World, place: WarmPlace, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.agent()
    world.play(says("Done."))
    monkeypatch.setenv(failpoints.VARIABLE, point)
    zygote = place.start()
    monkeypatch.delenv(failpoints.VARIABLE)
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    wait_for(lambda: not processes.is_alive(zygote), BOUND, "its death")


def only(packages: Path) -> dict[str, str]:
    """Return what makes an interpreter take the package from there, and not from where it stands."""
    return {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}


def test_the_key_changes_with_every_source_and_with_what_is_installed(tmp_path: Path) -> None:
    copy = tmp_path / "subagent_server"
    shutil.copytree(REPOSITORY / "subagent_server", copy, ignore=shutil.ignore_patterns("__pycache__"))

    def key() -> str:
        code = "from subagent_server.launch.image_key import image_key; print(image_key())"
        return run_python(code, environment=only(tmp_path)).stdout.strip()

    seen = [image_key(), key()]
    (copy / "domain" / "ids.py").write_bytes((copy / "domain" / "ids.py").read_bytes() + b"\n")
    seen.append(key())
    (copy / "domain" / "new.py").touch()
    seen.append(key())
    assert len({*seen}) == 4 and seen[-1] == key()


def test_a_key_is_that_of_the_interpreter_whatever_it_was_called_by() -> None:
    code = "from subagent_server.launch.image_key import image_key; print(image_key())"
    there = Path(sys.executable).parent.glob("python*")
    keys = {
        subprocess.run([name, "-c", code], capture_output=True, encoding="utf-8", timeout=BOUND).stdout
        for name in there
        if name.resolve() == Path(sys.executable).resolve()
    }
    assert keys == {f"{image_key()}\n"}


def test_an_installation_that_was_looked_at_is_seen_to_change(tmp_path: Path) -> None:
    copy = tmp_path / "subagent_server"
    shutil.copytree(REPOSITORY / "subagent_server", copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = """
        import os, sys
        from pathlib import Path
        from subagent_server.launch.image_key import Installation
        package, installed = map(Path, sys.argv[1:])
        sys.path += [str(installed), str(installed.parent / "dist-packages")]
        def settle():
            for path in (installed, package, *package.rglob("*/")):
                os.utime(path, (1, 1))
        def after(change):
            settle()
            seen = Installation()
            before = seen.is_as_it_was()
            change()
            print(before, seen.is_as_it_was(), Installation().key == seen.key)
            os.utime(installed, (2**32, 2**32))  # as one that has changed just now
            print(Installation().is_as_it_was())
        def edit():
            (package / "domain" / "ids.py").open("a").write("# more")
        after((package / "domain" / "new.py").touch)
        after((package / "domain" / "new.py").unlink)
        after((installed / "other-2.0.dist-info").mkdir)
        after((installed / "no record").touch)
        after((installed.parent / "dist-packages").mkdir)
        settle()
        seen = Installation()
        edit()
        print(seen.is_as_it_was())
    """
    installed = tmp_path / "site-packages"
    installed.mkdir()
    told = run_python(code, copy, installed, environment=only(tmp_path))
    came, nothing_new, just_changed = "True False False", "True False True", "False"
    seen = [came, just_changed] * 3 + [nothing_new, just_changed] * 2 + ["False"]
    assert told.stdout.splitlines() == seen, told.stderr


@contextmanager
def warm_copy(home: Path) -> Iterator[tuple[Path, Path]]:
    """A copy of the package, and the place of its warm process, which listens."""
    copy, place = home / "subagent_server", home / "warm"
    place.mkdir(mode=0o700)
    shutil.copytree(REPOSITORY / "subagent_server", copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = """
        import sys
        from subagent_server.launch.image_key import image_key
        from subagent_server.launch.zygote import main
        main([sys.argv[1], image_key(), "600", "-"])
    """
    with Child(code, place, environment=only(home)) as starting:
        assert starting.wait(BOUND) == 0
    wait_for(lambda: list(place.glob("*.sock")), BOUND, "the warm process")
    yield copy, place
    warm.end(place)


def test_a_warm_process_leaves_when_its_files_change(tmp_path: Path) -> None:
    with warm_copy(tmp_path) as (copy, place):
        (zygote,) = warm.zygotes(place)
        with (copy / "settings.py").open("a", encoding="utf-8") as file:
            file.write("\n")
        wait_for(lambda: not processes.is_alive(zygote), BOUND, "its leave")
        assert list(place.glob("*.sock")) == []


def test_a_starter_that_has_met_a_warm_process_before_does_not_take_it_for_changed_files(
    tmp_path: Path,
) -> None:
    code = """
        import sys
        from pathlib import Path
        from subagent_server.launch.asking import Wanted
        from subagent_server.launch.warm import WarmStart

        nothing = open("/dev/null", "r+").fileno()
        wanted = Wanted("command", ["subagent"], ["subagent", "--version"], {})
        warm = WarmStart(Path(sys.argv[1]), 600)

        def ask(between=lambda: None):
            called = warm.connect()
            ordered = called is not None and called.order(wanted, {number: nothing for number in (0, 1, 2)})
            assert ordered or between is not edit
            between()
            return ordered and called.go()

        def edit():
            with Path(sys.argv[2], "settings.py").open("a") as file:
                file.write("# edited")

        print(ask(), ask(edit), ask())
    """
    with warm_copy(tmp_path) as (copy, place):
        assert run_python(code, place, copy, environment=only(tmp_path)).stdout == "True False False\n"


def test_a_start_that_is_refused_once_its_process_was_called_leaves_no_process_and_no_lock(
    world: World, place: WarmPlace
) -> None:
    world.agent(mcpServers=[{"missing": {"command": "${NO_SUCH_VARIABLE}"}}])
    zygote = place.start()
    run_id = world.start()
    assert world.failed(run_id)[0] == "config"
    assert not locks.is_held(world.paths(run_id).live_lock)
    wait_for(lambda: all(is_spare(child, zygote) for child in children_of(zygote)), BOUND, "no other fork")
