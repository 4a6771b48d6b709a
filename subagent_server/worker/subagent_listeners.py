"""What a worker hears, beside its work, of other subagents."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager

from subagent_server.worker.event_port import VARIABLES, EventPort
from subagent_server.worker.own_run import OwnRun
from subagent_server.worker.subagent_journal import Recorder, SubagentJournal


@asynccontextmanager
async def others_heard(
    own: OwnRun, record: Recorder, environment: MutableMapping[str, str], *, leads: bool
) -> AsyncIterator[None]:
    """While inside, the journal gets what nested runs and foreign programs tell.

    `environment`, which programs of the run inherit, is told where to post. `leads` says whether the run may
    have nested runs at all.
    """
    nested, foreign = SubagentJournal(record), SubagentJournal(record)  # neither takes the room of the other
    over = asyncio.Event()
    port = await _opened(EventPort(foreign.tell), record, environment)
    following = asyncio.create_task(nested.follow(own.nested_events().look, over)) if leads else None
    try:
        yield
    finally:
        port.close()
        over.set()
        if following is not None:
            (fault,) = await asyncio.gather(following, return_exceptions=True)
            if isinstance(fault, Exception):
                record("warning", message=f"Events of nested runs could not be read: {fault}")
        nested.close()
        foreign.close()


async def _opened(port: EventPort, record: Recorder, environment: MutableMapping[str, str]) -> EventPort:
    """Open the port; without one the run goes on, and no program is sent to that of its parent."""
    for name in VARIABLES:
        environment.pop(name, None)
    try:
        await port.open()
    except OSError as error:
        record("warning", message=f"There is no port for events of subagents: {error}")
    else:
        environment.update(dict.fromkeys(VARIABLES, port.address))
    return port
