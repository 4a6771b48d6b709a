"""A real program starts a run that another real program carries out: permissions, stops, kills, boxes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations, product

import pytest

from subagent_server.run import processes
from subagent_server.run.states import Status
from tests.clients.installed import Installed
from tests.clients.parent_model import Call, Heard, Plan, Say, call, steps
from tests.clients.presets import Preset
from tests.clients.programs import PROGRAMS, Program
from tests.clients.scene import Scene
from tests.helpers.scale import sampled
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

WAIT = {"waitSeconds": 200}
AMONG_PROGRAMS = [*permutations(PROGRAMS, 2)]
PAIRS = [
    *sampled(AMONG_PROGRAMS, 2, lambda pair: pair[1]),
    ("opencode", "codex"),
    ("codex", "opencode"),
]
START = call("run_hand", prompt="Paint the door.", **WAIT)
ENDS = {"stop": Status.STOPPED, "program": Status.FAILED, "worker": Status.FAILED, "shim": Status.FAILED}
"""What happens to a run, and how it ends: it is stopped, or a process of it is killed."""
PLACES = [*product(AMONG_PROGRAMS, ("plain", "boxed"))]
BELOW = sampled(PLACES, 2, lambda place: place[1])
ABOVE = sampled([*product(PLACES, ENDS)], 4, lambda case: case[0][1], lambda case: case[1])


def _words(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else "-".join(value)


class Pair:
    """`lead` has `hand` do its work. The agents have these names."""

    def __init__(self, scene: Scene, clients: Installed, above: str, below: str) -> None:
        self.world: World = scene.world
        self.lead, self.hand = (
            (Program if name in PROGRAMS else Preset)(scene, clients, name) for name in (above, below)
        )

    @property
    def stays(self) -> str:
        """A command that does not end by itself."""
        return f"touch begun; tail -f {self.world.work}/begun"

    @contextmanager
    def playing(self, lead: Plan, hand: Plan, *, boxed: bool = False) -> Iterator[None]:
        """Let their models follow these plans."""
        boxes = [each.in_a_box() if boxed else {} for each in (self.lead, self.hand)]
        with ExitStack() as stack:
            stack.enter_context(self.hand.playing(hand, "hand", **boxes[1]))
            stack.enter_context(self.lead.playing(lead, "lead", agents=["hand"], **boxes[0]))
            yield

    def child(self, run_id: str) -> str:
        """Return the run of the hand, as soon as it is there."""
        wait_for(lambda: len(self.world.store.run_ids()) == 2, BOUND, "the run of the hand")
        (child,) = (each for each in self.world.store.run_ids() if each != run_id)
        return child

    def command_begins(self) -> bool:
        """Return True as soon as the command of the hand that stays is at work."""
        return wait_for((self.world.work / "begun").exists, BOUND, "the command")

    def nothing_left(self, *run_ids: str) -> None:
        """Return when nothing of the runs lives, their commands included."""
        for run_id in run_ids:
            self.world.gone(run_id)
        assert not processes.with_words(b"tail", f"{self.world.work}/begun".encode())


@pytest.fixture
def pair(request: pytest.FixtureRequest, scene: Scene, clients: Installed) -> Pair:
    """The pair of a test."""
    return Pair(scene, clients, *request.param)


@pytest.mark.parametrize("pair", PAIRS, indirect=True, ids="-".join)
def test_a_program_says_what_another_may_do_and_stops_it(pair: Pair) -> None:
    world = pair.world
    refused = [] if pair.hand.name == "opencode" else [f"touch {world.work}/denied"]  # it ends at a no
    commands = [*refused, f"touch {world.work}/allowed", pair.stays]
    answers = [*("no" for _ in refused), "once", "once"]

    def lead(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return START
        run_id, asked = heard.answer(0)["runId"], heard.calls - 1
        if asked < len(answers):
            wait = WAIT if asked < len(answers) - 1 else {}
            return call("reply_subagent", runId=run_id, answer=answers[asked], **wait)
        pair.command_begins()
        return call("stop_run", runId=run_id) if asked == len(answers) else Say(heard.answer()["status"])

    with pair.playing(lead, steps(*(pair.hand.shell(each, outside=True) for each in commands))):
        run_id = world.start(agent="lead")
        assert world.completed(run_id) == "stopped"
        child = pair.child(run_id)
        pair.nothing_left(run_id, child)
    questions = [message.question_content for message in world.meta(child).messages]
    assert len(questions) == len(answers) and str(world.work / "allowed") in questions[-2]
    assert (world.work / "allowed").exists() and not (world.work / "denied").exists()


@pytest.mark.parametrize(("pair", "place"), BELOW, indirect=["pair"], ids=_words)
def test_killed_below_it_the_program_above_hears_why(pair: Pair, place: str) -> None:
    world, boxed = pair.world, place == "boxed"

    def lead(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return START
        view = heard.answer()
        if heard.calls == 1 and view["status"] == "waiting_parent_reply":
            return call("reply_subagent", runId=view["runId"], answer="once", **WAIT)
        return Say(view.get("updatedMetadata", view)["error"]["code"])

    with pair.playing(lead, lambda _: pair.hand.shell(pair.stays, outside=not boxed), boxed=boxed):
        run_id = world.start(agent="lead")
        child = pair.child(run_id)
        pair.command_begins()
        processes.send_signal(pair.hand.itself(child), 9)
        assert world.completed(run_id) == "agent_error"
        pair.nothing_left(run_id, child)


@pytest.mark.parametrize(
    ("pair", "place", "end"), [(*place, end) for place, end in ABOVE], indirect=["pair"], ids=_words
)
def test_stopped_or_killed_a_program_takes_with_it_what_it_has_started(
    pair: Pair, place: str, end: str
) -> None:
    world, boxed = pair.world, place == "boxed"
    permitted = call("reply_subagent", answer="once", **WAIT)

    def lead(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return START
        return Call(permitted.tool, {**permitted.arguments, "runId": heard.answer(0)["runId"]})

    with pair.playing(lead, lambda _: pair.hand.shell(pair.stays, outside=not boxed), boxed=boxed):
        run_id = world.start(agent="lead")
        child = pair.child(run_id)
        pair.command_begins()
        if end == "stop":
            world.stop(run_id)
        else:
            victim = {"program": pair.lead.itself, "worker": world.worker, "shim": world.shim}[end]
            processes.send_signal(victim(run_id), 9)
        world.gone(run_id)
        assert world.look(run_id).meta.status is ENDS[end]
        world.gone(child)
        assert world.meta(child).status is Status.STOPPED
        pair.nothing_left(run_id, child)
