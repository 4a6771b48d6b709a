"""The events of other subagents that a worker writes into its journal beside its work."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager

from subagent_server.worker.event_port import VARIABLES, EventPort
from subagent_server.worker.nested_events import NestedEvents
from subagent_server.worker.run_context import WorkerRun
from subagent_server.worker.subagent_journal import SubagentJournal


@asynccontextmanager
async def subagents_heard(
    run: WorkerRun, environment: MutableMapping[str, str], *, may_delegate: bool
) -> AsyncIterator[None]:
    """While inside, the journal gets the events of nested runs and of foreign programs.

    `environment`, which programs of the run inherit, gets the address to post to. `may_delegate` says whether
    the run may have nested runs at all.
    """
    record = run.record
    nested, foreign = SubagentJournal(record), SubagentJournal(record)  # neither takes the room of the other
    over = asyncio.Event()
    port = await _opened(EventPort(foreign.write_foreign), run, environment)
    nested_events = NestedEvents(run.store, run.run_id)
    following = asyncio.create_task(nested.follow(nested_events.look, over)) if may_delegate else None
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


async def _opened(port: EventPort, run: WorkerRun, environment: MutableMapping[str, str]) -> EventPort:
    """Open the port. If there is none the run goes on, and its programs do not use the port of its parent."""
    for name in VARIABLES:
        environment.pop(name, None)
    try:
        await port.open()
    except OSError as error:
        run.record("warning", message=f"There is no port for events of subagents: {error}")
    else:
        environment.update(dict.fromkeys(VARIABLES, port.address))
    return port
