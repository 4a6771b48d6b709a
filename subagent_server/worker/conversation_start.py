"""How the conversation of a run begins: with its task, or with what the run has said that it carries on."""

from dataclasses import dataclass
from typing import Any

from subagent_server.runners.messages.repair import sendable
from subagent_server.runners.messages.resume import Opening, resume
from subagent_server.runners.outcome import Outcome
from subagent_server.toolkit.run_context import RunDoor
from subagent_server.worker.own_run import OwnRun


@dataclass(frozen=True)
class Beginning:
    """The first messages. `text` is what was said last; with an `outcome` there is nothing left to do."""

    messages: list[dict[str, Any]]
    text: str = ""
    outcome: Outcome | None = None


async def begin(continues: str | None, own: OwnRun, door: RunDoor, opening: Opening) -> Beginning:
    """Return the beginning of a run, written to its transcript.

    The transcript of a run that carries another on is whole from its first moment, so that it can itself be
    carried on without the other.

    Raises:
        UnknownRun, UnreadableMeta: the run that it carries on is there no more.
    """
    if continues is None:
        first = {"role": "user", "content": list(opening.words)}
        door.remember(first)
        return Beginning([first])
    resumed = await resume(own.past(continues), opening)
    own.adopt(resumed.messages)
    if resumed.unknown:
        door.record("warning", message=_warning(continues, resumed.unknown))
    return Beginning(sendable(resumed.messages), resumed.text, resumed.outcome)


def _warning(run_id: str, unknown: list[str]) -> str:
    return (
        f"It is not known what these calls of run {run_id} did, because it ended in the middle of them: "
        f"{', '.join(unknown)}. The model is told, and none is repeated unasked."
    )
