"""The verb `check_status`: the view of one run, and the answer for a child that asked.

Tested in `tests/verbs/test_reply.py`, `test_run_case.py` there, and `tests/end_to_end/test_children.py`.
"""

from contextlib import suppress

from subagent_server.run import transitions
from subagent_server.run.errors import MessageClosed, UnknownMessage
from subagent_server.run.processes import now
from subagent_server.run.states import MessageStatus
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.reconcile import Observed, open_run
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import AS_TOOLS, NextCalls, RunView, run_view


def check_status(
    service: Service,
    run_id: str,
    message_id: str | None = None,
    caller: Caller = USER,
    calls: NextCalls = AS_TOOLS,
) -> RunView:
    """Return the view of a run. If a run names its own question, the call acknowledges the answer shown.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, UnknownMessage, NotAllowed.
    """
    is_asker = caller.run_id == run_id
    return view_for(service, open_run(service, run_id, caller), calls, message_id, caller, is_asker=is_asker)


def view_for(
    service: Service,
    observed: Observed,
    calls: NextCalls,
    message_id: str | None,
    caller: Caller,
    *,
    is_asker: bool = False,
) -> RunView:
    """Return the view of a run just opened; its asker takes the answer to the question that it names.

    The view shows the state before the acknowledgement, with the answer (seed
    `bidirectional_communication.txt`, 3.4). A parent that looks changes nothing, whatever it names.

    Raises:
        UnknownMessage, UnreadableMeta.
    """
    run_id = observed.meta.run_id
    if message_id is None:
        return run_view(service.store, observed, calls, caller)
    message = observed.meta.message(message_id)
    if message is None:
        raise UnknownMessage(run_id, message_id, [m.message_id for m in observed.meta.pending])
    view = run_view(service.store, observed, calls, caller, message_id, to_asker=is_asker)
    if is_asker and message.message_status is MessageStatus.REPLIED:
        with suppress(MessageClosed):  # the run ended meanwhile; the answer stays readable
            service.store.update(run_id, transitions.ReplyAcknowledged(message_id=message_id), now())
    return view
