"""Asking: a run records a question. The parent need not be connected at the time.

Tested in `tests/service/test_reply.py` and `tests/end_to_end/test_child_programs.py`.
"""

from collections.abc import Mapping
from datetime import timedelta

from pydantic import ValidationError

from subagent_server.domain import events
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import UnreadableMeta
from subagent_server.domain.limits import check_question
from subagent_server.domain.records import Message, RunMeta
from subagent_server.host.clock import now
from subagent_server.launch import hooks
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.masking import masker_at_door
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed
from subagent_server.store.runs import RunStore


def ask(
    store: RunStore,
    run_id: str,
    question: str,
    options: list[str] | None,
    timeout_seconds: float,
    told: str | None = None,
) -> Message:
    """Record a question and return it. `timeout_seconds` is how long the question waits for an answer.

    `told` are the hooks to start (`hooks_of`).

    Raises:
        BadArgument: the question is empty or too long, or has too many options.
        TooManyQuestions: the run has reached its limit.
        IllegalTransition: the run has ended or has not begun.
    """
    return _with_question(store, run_id, question, options, timeout_seconds, told).messages[-1]


def ask_as_child(
    service: Service, run_id: str, question: str, options: list[str] | None, caller: Caller = USER
) -> Observed:
    """Record a question asked through a tool, and return the run with the question as its last message.

    The question waits as long as the agent's file says.

    Raises:
        BadArgument, TooManyQuestions, IllegalTransition, InvalidRunId, UnknownRun, UnreadableMeta.
        NotAllowed: the question is another run's.
    """
    observed = open_run(service, run_id, caller)
    masker = masker_at_door(service, run_id)
    question, masked = masker.text(question), masker.data(options)
    seconds = _ask_timeout_seconds(service.store, run_id)
    told = hooks_of(service.settings.environment)
    return Observed(_with_question(service.store, run_id, question, masked, seconds, told), observed.live)


def _with_question(
    store: RunStore,
    run_id: str,
    question: str,
    options: list[str] | None,
    timeout_seconds: float,
    told: str | None,
) -> RunMeta:
    check_question(question, options or ())
    moment = now()
    event = events.QuestionAsked(
        question=question,
        options=tuple(options or ()),
        expires_at=moment + timedelta(seconds=timeout_seconds),
    )
    meta = store.update(run_id, event, moment)
    facts = {"runId": run_id, "agent": meta.agent_name, "messageId": meta.messages[-1].message_id}
    hooks.fire(told, "onQuestion", {**facts, "question": question, "options": options or []})
    return meta


def hooks_of(environment: Mapping[str, str]) -> str | None:
    """Return the hooks that a run was given in its environment."""
    return environment.get(hooks.VARIABLE)


def _ask_timeout_seconds(store: RunStore, run_id: str) -> float:
    """Return how long a question of a run waits for its answer."""
    try:
        agent = AgentDefinition.model_validate(store.read_request(run_id).agent)
    except ValidationError as error:
        path = store.paths.run(run_id).request.path
        raise UnreadableMeta(run_id, path, "the agent in it is none") from error
    return agent.limits.ask_timeout_seconds
