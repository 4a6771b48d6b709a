"""What every test of a client has: a world with an agent, its scripted model, and a fence around all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from subagent_server.extensions.simulator import Simulator, Turn, load_script
from subagent_server.extensions.simulator.answer import choose
from subagent_server.extensions.simulator.model_request import RequestView
from tests.clients.loopback import Fence, fence
from tests.helpers import turns, warm
from tests.helpers.world import World

AGENT = "painter"
AGENT_PROMPT = "You are the painter of this house."
GATE = "gate"
_ENOUGH = 1200

ParentTurn = Callable[[dict[str, Any]], dict[str, Any]]


class Scene:
    """A world whose agent follows the script of `plays`; `parent` answers all other requests to the API."""

    def __init__(self, world: World, walls: Fence) -> None:
        self.world = world
        self.fence = walls
        self.parent: ParentTurn | None = None
        self._script = load_script({"turns": [turns.says("Painted.")]})
        world.agent(AGENT, AGENT_PROMPT)

    def plays(self, *script: turns.Turn) -> None:
        """Say what the agent's model says from now on."""
        self._script = load_script({"turns": list(script)})

    def waits_at_the_gate(self) -> None:
        """Let the agent's work take until the gate is open, but not for ever."""
        wait = f"for i in $(seq {_ENOUGH}); do [ -e {self.gate} ] && break; sleep 0.05; done"
        self.plays(turns.shell(wait), turns.says("Painted."))

    @property
    def gate(self) -> Path:
        """The file that opens the gate."""
        return self.world.work / GATE

    def open_gate(self) -> None:
        """Let the agent finish."""
        self.gate.touch()

    def run_ids(self) -> list[str]:
        """Return the runs that there are."""
        return self.world.store.run_ids()

    def respond(self, body: dict[str, Any]) -> Turn | dict[str, Any]:
        """Answer a request as the model of the agent or of the parent, whichever sent it."""
        view = RequestView(body)
        if AGENT_PROMPT in view.system:
            return choose(self._script, view).turn
        assert self.parent is not None, "the scene has no model for the parent"
        return self.parent(body)


@contextmanager
def scene(world: World) -> Iterator[Scene]:
    """Set the scene."""
    with fence() as walls:
        made = Scene(world, walls)
        with Simulator(made.respond) as simulator:
            world.environment |= {**walls.environment, "ANTHROPIC_BASE_URL": simulator.base_url}
            try:
                yield made
            finally:  # a client that hands on few variables has its server use the home's own zygote
                for place in (world.home / ".cache").glob("subagent-*"):
                    warm.end(place)
        assert walls.reached == [], f"a connection left the machine: {walls.reached}"
