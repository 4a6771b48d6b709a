"""The runners: a row each, under the name used in agent files."""

from collections.abc import Awaitable, Callable

from subagent_server import extensions
from subagent_server.domain.definitions import RunnerName
from subagent_server.runners.runner import Runner
from subagent_server.worker.runner_setup import RunnerSetup

OpenRunner = Callable[[RunnerSetup], Awaitable[Runner]]
"""Returns a runner that is ready to work, with the start of its run recorded.

It raises RunRefused with `config` for a setting that cannot be kept.
"""

RUNNERS: dict[str, str] = {
    "messages": "subagent_server.worker.messages_runner:open_runner",
    **extensions.runners(),
}
"""The function that opens each. A worker imports that of its own agent alone.

The names are those of `RunnerName` in `domain/definitions.py`, by which agent files are judged.
"""


def opener_of(name: RunnerName) -> OpenRunner:
    """Return the function that opens a runner of this name."""
    opener: OpenRunner = extensions.imported(RUNNERS[name])
    return opener
