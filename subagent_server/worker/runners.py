"""The built-in runners: a row each, under the name used in agent files."""

from collections.abc import Awaitable, Callable

from subagent_server.domain.definitions import RunnerName
from subagent_server.runners.runner import Runner
from subagent_server.worker.messages_runner import open_messages_runner
from subagent_server.worker.runner_setup import RunnerSetup

OpenRunner = Callable[[RunnerSetup], Awaitable[Runner]]
"""Returns a runner that is ready to work, with the start of its run recorded.

It raises RunRefused with `config` for a setting that cannot be kept.
"""

RUNNERS: dict[RunnerName, OpenRunner] = {
    "messages": open_messages_runner,
}
"""The names are `BUILT_RUNNERS` of `domain/definitions.py`, by which agent files are judged."""
