"""What the zygote imports and rehearses changes nothing for its forks: a warm program is as a plain one."""

import json
from pathlib import Path

import pytest

from subagent_server.run.paths import CHANGES
from tests.helpers import warm
from tests.helpers.processes import run_python

LOAD = """
    import json, logging, os, signal, sys, threading
    from pathlib import Path
    from subagent_server.worker import rehearsal, zygote_main
    before, began = dict(os.environ), os.getcwd()
    descriptors = lambda: len(os.listdir("/proc/self/fd"))
    zygote_main.load()
    rehearsal.rehearse(Path(sys.argv[1]))
    opened = descriptors()
    rehearsal.rehearse(Path(sys.argv[1]))
    print(json.dumps({
        "handlers": [type(handler).__name__ for handler in logging.getLogger().handlers],
        "level": logging.getLevelName(logging.getLogger().level),
        "threads": threading.active_count(),
        "environment": dict(os.environ) == before,
        "handled": [number for number in signal.valid_signals() if callable(signal.getsignal(number))],
        "descriptors": descriptors() - opened,
        "directory": os.getcwd() == began,
    }))
"""


def test_imports_and_a_rehearsal_leave_no_logging_thread_file_or_handler_of_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, others = tmp_path / "session", tmp_path / "runs" / CHANGES
    place = session / "subagent"  # where zygotes are by default
    place.mkdir(parents=True)
    session.chmod(0o700)
    others.mkdir(parents=True)  # runs of a project in which it happens to be
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    monkeypatch.delenv(warm.PLACE)
    done = run_python(LOAD, place)
    assert json.loads(done.stdout) == {
        "handlers": [],
        "level": "WARNING",
        "threads": 1,
        "environment": True,
        "handled": [2],  # the interpreter's own, for Ctrl-C
        "descriptors": 0,
        "directory": True,
    }
    assert list(place.iterdir()) == [] and list(others.parent.rglob("*")) == [others]
    assert done.stderr == ""


def test_a_shim_loads_no_event_loop_and_nothing_that_is_installed() -> None:
    """It lives as long as its run: asyncio and libcrypto were 3.3 of its 14.2 MiB."""
    loaded = """
        import json, sys
        before = set(sys.modules)  # a measurement of coverage loads some of its own
        from subagent_server.process import shim
        print(json.dumps([*set(sys.modules) - before]))
    """
    modules = set(json.loads(run_python(loaded).stdout))
    assert "subagent_server.process.shim" in modules
    assert not {"asyncio", "ssl", "_hashlib", "pydantic", "filelock"} & modules
