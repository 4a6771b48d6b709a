"""When a run acknowledges the answers that it has read, and that it forgets no answer."""

import asyncio
from pathlib import Path

import pytest

from subagent_server.extensions.simulator import Simulator
from subagent_server.run.errors import MessageClosed, StorageFailed
from subagent_server.run.states import MessageStatus, Status
from subagent_server.worker.worker_run import Acknowledgements
from tests.helpers.turns import asks
from tests.helpers.world import BOUND, World

TURNS_OF_THE_LOOP = 20


class Written:
    """The acknowledgements that were written, in their order."""

    def __init__(self, *faults: Exception) -> None:
        self.ids: list[str] = []
        self._faults = list(faults)

    def __call__(self, message_id: str) -> None:
        if self._faults:
            raise self._faults.pop(0)
        self.ids.append(message_id)

    async def until(self, *ids: str) -> None:
        """Return when these are written."""
        async with asyncio.timeout(BOUND):
            while self.ids != list(ids):
                await asyncio.sleep(0)


async def pass_turns() -> None:
    """Let everything that is ready run."""
    for _ in range(TURNS_OF_THE_LOOP):
        await asyncio.sleep(0)


def test_an_answer_is_acknowledged_when_a_request_has_been_sent_and_not_before() -> None:
    async def scene() -> None:
        written = Written()
        acknowledgements = Acknowledgements(written, longest_delay=10 * BOUND)
        acknowledgements.add("q1")
        await pass_turns()
        assert written.ids == []
        acknowledgements.release()
        acknowledgements.add("q2")
        await written.until("q1")
        await pass_turns()
        assert written.ids == ["q1"], "q2 was read after that request"
        acknowledgements.release()
        await written.until("q1", "q2")

    asyncio.run(scene())


def test_an_answer_is_acknowledged_although_no_request_is_sent() -> None:
    async def scene() -> None:
        written = Written()
        Acknowledgements(written, longest_delay=0.01).add("q1")
        await written.until("q1")

    asyncio.run(scene())


def test_the_end_of_a_run_waits_for_its_acknowledgements_and_says_which_could_not_be_written(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        closed = MessageClosed("The run has ended.")
        written = Written(closed, StorageFailed(tmp_path, "no space left on device"))
        acknowledgements = Acknowledgements(written, longest_delay=10 * BOUND)
        acknowledgements.add("q1")
        await acknowledgements.written()
        acknowledgements.add("q2")
        with pytest.raises(StorageFailed):
            await acknowledgements.written()
        acknowledgements.add("q3")
        await acknowledgements.written()
        assert written.ids == ["q3"]

    asyncio.run(scene())


def test_an_answer_that_an_api_out_of_reach_never_gets_is_acknowledged(world: World) -> None:
    world.agent()
    with Simulator({"turns": [asks("Which colour?")]}) as simulator:
        world.environment["ANTHROPIC_BASE_URL"] = simulator.base_url
        run_id = world.start_asking()
    world.reply(run_id, "blue")
    meta = world.until(run_id, lambda meta: meta.messages[0].message_status is MessageStatus.ACKNOWLEDGED)
    assert meta.status is Status.RUNNING
    assert world.stop(run_id).meta.status is Status.STOPPED
