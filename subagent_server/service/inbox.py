"""The open questions of every tree, each with the asking run and its task.

Tested in `tests/cli/test_inbox.py`.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import Record, RunMeta
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run
from subagent_server.service.views import MessageView, message_view

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


def open_questions(service: Service, caller: Caller = USER) -> list[OpenQuestion]:
    """Return the open questions of all runs the caller may open, the oldest first.

    Only a live run can ask, so the cost follows the live runs. An unreadable run asks nothing: lists show the
    run as unreadable.
    """
    found: list[OpenQuestion] = []
    for run_id in service.store.live_ids():
        with suppress(SubagentError):
            found += _questions(service, open_run(service, run_id, caller).meta)
    return sorted(found, key=lambda question: (question.asked_at, question.run_id))


def _questions(service: Service, meta: RunMeta) -> Iterator[OpenQuestion]:
    if not meta.pending:
        return
    about: dict[str, Any] = {
        "run_id": meta.run_id,
        "agent": meta.agent_name,
        "label": meta.label,
        "path": _path(service, meta) or None,
        "prompt": _prompt(service, meta.run_id),
    }
    for message in meta.pending:
        yield OpenQuestion(**message_view(message).model_dump(), **about)


def _path(service: Service, meta: RunMeta) -> list[Ancestor]:
    """Return the runs above this one, the first of the tree first, as far as they can be read."""
    path: list[Ancestor] = []
    above = meta.parent_run_id
    for _ in range(meta.depth):
        if above is None:
            break
        try:
            parent = service.store.read(above)
        except SubagentError:
            break
        path.insert(0, Ancestor(run_id=parent.run_id, agent=parent.agent_name))
        above = parent.parent_run_id
    return path


def _prompt(service: Service, run_id: str) -> str | None:
    with suppress(SubagentError):
        line = service.store.read_request(run_id).prompt.strip().split("\n", 1)[0]
        return line[:MAX_PROMPT_CHARACTERS]
    return None
