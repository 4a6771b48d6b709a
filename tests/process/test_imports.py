"""What the zygote imports changes nothing for its forks: a warm program is as a plain one."""

import json

from tests.helpers.processes import run_python

LOAD = """
    import json, logging, os, signal, threading
    from subagent_server.worker import zygote_main
    before = dict(os.environ)
    zygote_main.load()
    print(json.dumps({
        "handlers": [type(handler).__name__ for handler in logging.getLogger().handlers],
        "level": logging.getLevelName(logging.getLogger().level),
        "threads": threading.active_count(),
        "environment": dict(os.environ) == before,
        "handled": [number for number in signal.valid_signals() if callable(signal.getsignal(number))],
    }))
"""


def test_imports_configure_no_logging_and_leave_no_thread_and_no_handler_of_signals() -> None:
    assert json.loads(run_python(LOAD).stdout) == {
        "handlers": [],
        "level": "WARNING",
        "threads": 1,
        "environment": True,
        "handled": [2],  # the interpreter's own, for Ctrl-C
    }


def test_a_shim_loads_no_event_loop_and_nothing_that_is_installed() -> None:
    """It lives as long as its run: asyncio and libcrypto were 3.3 of its 14.2 MiB."""
    loaded = (
        "import json, sys; from subagent_server.process import shim; print(json.dumps(list(sys.modules)))"
    )
    modules = json.loads(run_python(loaded).stdout)
    assert not {"asyncio", "ssl", "_hashlib", "pydantic", "filelock"} & set(modules)
