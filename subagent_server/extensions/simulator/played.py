"""The scripted model of a run: a Messages API in a thread of its worker, for as long as the worker lives."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from subagent_server.extensions.simulator.model_script import parse_script
from subagent_server.extensions.simulator.model_server import Simulator
from subagent_server.run.errors import LaunchFailed, SubagentError
from subagent_server.verbs.service import ADDRESS, KEY


@contextmanager
def script_played(script: Mapping[str, str], environment: dict[str, str]) -> Iterator[None]:
    """Play a script, and let `environment` name its address.

    Only requests with the key of the run are answered, because every user of the machine reaches loopback.

    Raises:
        LaunchFailed: the script cannot be played.
    """
    with ExitStack() as opened:
        try:
            parsed = parse_script(script["text"], script["name"])
            simulator = opened.enter_context(Simulator(parsed, key=environment[KEY]))
        except SubagentError as error:
            raise LaunchFailed(error.sentence) from error
        environment[ADDRESS] = simulator.base_url
        yield
