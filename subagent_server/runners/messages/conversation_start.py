"""How the conversation of a run begins: with its task, or with the conversation that it carries on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.domain.past import PastRun
from subagent_server.runners.messages.repair import sendable
from subagent_server.runners.messages.resume import Opening, resume
from subagent_server.runners.outcome import Outcome
from subagent_server.toolkit.run_context import RunContext


@dataclass(frozen=True)
class ConversationStart:
    """The first messages. `text` was said last; with an `outcome` the work was done already."""

    messages: list[dict[str, Any]]
    text: str = ""
    outcome: Outcome | None = None


def start_conversation(run: RunContext, opening: Opening) -> ConversationStart:
    """Return the start of a new conversation, written to the transcript of `run`."""
    first = {"role": "user", "content": list(opening.words)}
    run.remember(first)
    return ConversationStart([first])


async def carry_on_conversation(
    run: RunContext, past: Sequence[PastRun], opening: Opening
) -> ConversationStart:
    """Return the conversation of `past`, oldest run first, carried on in the transcript of `run`.

    That transcript is whole from its first moment, so that it can be carried on without those before it.
    """
    resumed = await resume(past, opening)
    run.adopt(resumed.messages)
    if resumed.unknown:
        run.record("warning", message=_warning(past[-1].run_id, resumed.unknown))
    return ConversationStart(sendable(resumed.messages), resumed.text, resumed.outcome)


def _warning(run_id: str, unknown: list[str]) -> str:
    return (
        f"It is not known what these calls of run {run_id} did, because it ended in the middle of them: "
        f"{', '.join(unknown)}. The model is told, and none is repeated unasked."
    )
