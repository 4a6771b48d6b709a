"""Questions: a run asks, its parent or a person replies, and a person lists what is open.

Nobody need be connected when a question or an answer is recorded. Tested in `tests/verbs/test_reply.py`,
`tests/end_to_end/test_child_programs.py` and `tests/cli/test_inbox.py`.
"""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from subagent_server.process import cleanup
from subagent_server.run import transitions
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, MessageClosed, SubagentError, UnreadableMeta
from subagent_server.run.processes import now
from subagent_server.run.records import Message, Record, RunMeta
from subagent_server.run.secrets import MASK
from subagent_server.run.states import MAX_QUESTION_CHARACTERS, check_answer, check_question, cut
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import USER, Caller, NotAllowed
from subagent_server.verbs.inputs import masker_at_door
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import MessageView, message_view


def ask(
    store: RunStore,
    run_id: str,
    question: str,
    options: list[str] | None,
    timeout_seconds: float,
    hooks: str | None = None,
) -> RunMeta:
    """Record a question, and return the run with the question as its last message.

    `timeout_seconds` is how long the question waits for an answer, `hooks` are those of its environment.

    Raises:
        BadArgument: the question is empty or too long, or has too many options.
        TooManyQuestions: the run has reached its limit.
        IllegalTransition: the run has ended or has not begun.
    """
    check_question(question, options or ())
    moment = now()
    event = transitions.QuestionAsked(
        question=question,
        options=tuple(options or ()),
        expires_at=moment + timedelta(seconds=timeout_seconds),
    )
    meta = store.update(run_id, event, moment)
    # The hook comes after the write: what it starts finds the question.
    facts = {"runId": run_id, "agent": meta.agent_name, "messageId": meta.messages[-1].message_id}
    cleanup.fire(hooks, "onQuestion", {**facts, "question": question, "options": options or []})
    return meta


def ask_as_child(
    service: Service, run_id: str, question: str, options: list[str] | None, caller: Caller = USER
) -> Observed:
    """Record a question asked through a tool, and return the run with the question as its last message.

    The question waits as long as the agent's file sets.

    Raises:
        BadArgument, TooManyQuestions, IllegalTransition, InvalidRunId, UnknownRun, UnreadableMeta.
        NotAllowed: the question is another run's.
    """
    observed = observe(service.store, run_id, caller)
    masker = masker_at_door(service, run_id)
    question, masked = masker.text(question), masker.data(options)
    try:
        agent = AgentDefinition.model_validate(service.store.read_request(run_id).agent)
    except ValidationError as error:
        path = service.store.paths.run(run_id).request.path
        raise UnreadableMeta(run_id, path, "the agent in it is none") from error
    seconds = agent.limits.ask_timeout_seconds
    hooks = service.settings.environment.get(cleanup.VARIABLE)
    return replace(observed, meta=ask(service.store, run_id, question, masked, seconds, hooks))


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
        raise NotAllowed(f"Run {run_id} does not answer itself: what it asks is answered by its parent.")
    observed = observe(service.store, run_id, caller)
    masked = masker_at_door(service, run_id).text(answer)
    named = message_id or _the_only_open_one(observed.meta)
    event = transitions.ReplyGiven(message_id=named, answer=masked, answered_by=answered_by)
    return replace(observed, meta=service.store.update(run_id, event, now()))


def masked_note(meta: RunMeta, answer: str) -> str:
    """Return what to add to the news of a recorded answer, if `meta` has it without its secrets."""
    if any(message.answer_content == answer for message in meta.messages):
        return ""
    return f", with {MASK} in place of what is secret in it"


def _the_only_open_one(meta: RunMeta) -> str:
    if not meta.pending:
        if meta.messages:  # the same answer once more succeeds; another learns who was first, and when
            return meta.messages[-1].message_id
        raise MessageClosed(
            f"Run {meta.run_id} ({meta.status.value}) has no open question: check_status shows what it does."
        )
    if len(meta.pending) > 1:
        names = ", ".join(f'{m.message_id} "{m.question_content[:60]}"' for m in meta.pending)
        raise BadArgument(f"Run {meta.run_id} has several open questions ({names}): name one with messageId.")
    return meta.pending[0].message_id


MAX_PROMPT_CHARACTERS = 200


class Ancestor(Record):
    """A run above the one that asks."""

    run_id: str
    agent: str


class OpenQuestion(MessageView):
    """An open question with its run. `path` leads from the first run of the tree to the parent."""

    run_id: str
    agent: str
    label: str | None = None
    path: list[Ancestor] | None = None
    prompt: str | None = None


def forwarded_question(meta: RunMeta, message: Message) -> str:
    """Return what a flow asks for a run that it has started."""
    label = f" ({meta.label})" if meta.label else ""
    return cut(f"{meta.agent_name}{label} asks: {message.question_content}", MAX_QUESTION_CHARACTERS)


def open_questions(service: Service, caller: Caller = USER) -> list[OpenQuestion]:
    """Return the open questions of all runs the caller may open, the oldest first.

    Only a live run can ask, so the cost follows the live runs. An unreadable run asks nothing: lists show the
    run as unreadable. What a flow asks for a run below it is one question, that of the flow.

    Raises:
        ForeignRoot: there nobody knows which runs live, and none can be answered.
    """
    store = service.store
    store.paths.check_ours()
    found: list[OpenQuestion] = []
    for run_id in store.live_ids():
        with suppress(SubagentError):
            meta = observe(service.store, run_id, caller).meta
            if meta.pending:
                parents = list(store.above(meta))
                seen = [] if caller.is_child else parents[:1]  # a run does not answer itself
                forwarded = {message.question_content for each in seen for message in each.pending}
                above = [Ancestor(run_id=each.run_id, agent=each.agent_name) for each in parents]
                about: dict[str, Any] = {
                    "run_id": meta.run_id,
                    "agent": meta.agent_name,
                    "label": meta.label,
                    "path": above[::-1] or None,
                    "prompt": _prompt(service, meta.run_id),
                }
                found += [
                    OpenQuestion(**message_view(message).model_dump(), **about)
                    for message in meta.pending
                    if forwarded_question(meta, message) not in forwarded
                ]
    return sorted(found, key=lambda question: (question.asked_at, question.run_id))


def _prompt(service: Service, run_id: str) -> str | None:
    with suppress(SubagentError):
        line = service.store.read_request(run_id).prompt.strip().split("\n", 1)[0]
        return line[:MAX_PROMPT_CHARACTERS]
    return None
