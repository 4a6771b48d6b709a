"""The verb `reply_subagent`: an answer is recorded, whether or not its run is there to take it.

Tested in `tests/service/test_reply.py`.
"""

from subagent_server.domain import events
from subagent_server.domain.errors import BadArgument, MessageClosed
from subagent_server.domain.limits import check_answer
from subagent_server.domain.records import RunMeta
from subagent_server.domain.secrets import MASK
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller, NotAllowed
from subagent_server.service.context import Service
from subagent_server.service.masking import masker_at_door
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed


def reply(
    service: Service,
    run_id: str,
    answer: str,
    message_id: str | None = None,
    *,
    answered_by: str = "parent",
    caller: Caller = USER,
) -> Observed:
    """Record an answer and return the run. Without `message_id`, the only open question is answered.

    Repeating the same answer succeeds and changes nothing. A secret in the answer is masked, as everywhere on
    disk.

    Raises:
        BadArgument, UnknownMessage, MessageClosed, InvalidRunId, UnknownRun, NotAllowed, ForeignRoot.
    """
    check_answer(answer)
    service.store.paths.check_ours()
    if caller.run_id == run_id:
        raise NotAllowed(f"Run {run_id} asked that itself: its answer comes from its parent; wait for it.")
    observed = open_run(service, run_id, caller)
    named = message_id or _the_only_open_one(observed.meta)
    masked = masker_at_door(service, run_id).text(answer)
    event = events.ReplyGiven(message_id=named, answer=masked, answered_by=answered_by)
    return Observed(service.store.update(run_id, event, now()), observed.live)


def masked_note(meta: RunMeta, answer: str) -> str:
    """Return what to add to the news of a recorded answer, if it stands in `meta` without its secrets."""
    if any(message.answer_content == answer for message in meta.messages):
        return ""
    return f", with {MASK} in place of what is secret in it"


def _the_only_open_one(meta: RunMeta) -> str:
    if not meta.pending:
        raise MessageClosed(
            f"Run {meta.run_id} ({meta.status.value}) has no open question: check_status shows what it does."
        )
    if len(meta.pending) > 1:
        names = ", ".join(f'{m.message_id} "{m.question_content[:60]}"' for m in meta.pending)
        raise BadArgument(f"Run {meta.run_id} has several open questions ({names}): name one with messageId.")
    return meta.pending[0].message_id
