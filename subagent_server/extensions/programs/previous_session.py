"""What a program continues: by its own session, else as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from subagent_server.extensions.programs.program import is_session_id
from subagent_server.run.errors import SubagentError
from subagent_server.run.files import Directory
from subagent_server.run.history import PreviousRun
from subagent_server.run.records import RunRequest
from subagent_server.run.store import RunStore
from subagent_server.worker.previous_run import LONGEST_CHAIN, read_previous_runs

_MOST_CALLS = 50
_LONGEST_ARGUMENTS = 300
_GO_ON = "Continue where you were cut off."


@dataclass(frozen=True)
class PreviousSession:
    """The facts that a run needs of the runs that it continues.

    `messages` is the conversation so far. `session_id` names the program's own session, None without a
    session. `untold` are tasks that the session may lack. `unknown` are calls whose end is not recorded.
    `spent` is the cost of the session so far, None if a part of it is not known. `state` is the directory
    that holds the session, if the program keeps it in a sandbox.
    """

    messages: Sequence[dict[str, Any]] = ()
    session_id: str | None = None
    untold: Sequence[str] = ()
    unknown: Sequence[str] = ()
    spent: Decimal | None = Decimal(0)
    state: Directory | None = None

    def words(self, prompt: str) -> str:
        """Return the words for the program: the new task, behind all that its session does not hold."""
        if not self.messages:
            return prompt
        parts = list(self.untold) if self.session_id is not None else [_in_words(self.messages)]
        if self.unknown:
            lines = "\n".join(f"- {call}" for call in self.unknown)
            parts.append(
                "The run before ended in the middle of these calls. It is not known what they did, and none "
                f"was repeated; find out before you make them again:\n{lines}"
            )
        return "\n\n".join([*parts, prompt if prompt.strip() else _GO_ON])


def previous_session(store: RunStore, request: RunRequest, *, boxed: bool) -> PreviousSession:
    """Return what the run of `request` continues. Blocking.

    A program in a sandbox has the sessions of others in a sandbox alone, and the other way round.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: a run of the chain is gone, or cannot be read.
    """
    if request.continues_run_id is None:
        return PreviousSession()
    runs = read_previous_runs(store, request.continues_run_id)
    homes = [store.paths.run(run.run_id).program_home for run in runs]
    named = [store.read(run.run_id).external_session_id or "" for run in runs]
    kept = [is_session_id(name) and home.exists() == boxed for name, home in zip(named, homes, strict=True)]
    sessions = [name if is_kept else None for name, is_kept in zip(named, kept, strict=True)]
    last = max((n for n, session in enumerate(sessions) if session is not None), default=None)
    messages = [*runs[0].messages, *(_user_message(run.prompt) for run in runs if not run.messages)]
    untold = [
        run.prompt for run in runs[0 if last is None else last :] if not run.calls and not _answered(run)
    ]
    return PreviousSession(
        messages=messages,
        session_id=None if last is None else sessions[last],
        untold=[text for text in untold if text.strip()],
        spent=Decimal(0) if last is None else _spent(store, request.continues_run_id, boxed=boxed),
        state=homes[last] if last is not None and boxed else None,
        unknown=[
            _call(run, call_id) for run in runs for call_id in run.calls if not run.calls[call_id].finished
        ][:_MOST_CALLS],
    )


def _spent(store: RunStore, run_id: str | None, *, boxed: bool) -> Decimal | None:
    """Return what the runs that share a session have cost together, None if that of one is not known."""
    total = Decimal(0)
    for _ in range(LONGEST_CHAIN):
        if run_id is None:
            break
        try:
            meta = store.read(run_id)
        except SubagentError:
            return None
        if meta.external_session_id is not None:
            if store.paths.run(run_id).program_home.exists() != boxed:
                break  # the session began behind it
            if meta.usage.cost_usd is None:
                return None
            total += meta.usage.cost_usd
        run_id = meta.continues_run_id
    return total


def _answered(run: PreviousRun) -> bool:
    """Whether the program has answered the last task of a run at all."""
    return bool(run.messages) and run.messages[-1].get("role") == "assistant"


def _call(run: PreviousRun, call_id: str) -> str:
    call = run.calls[call_id]
    return f"{call.name} {str(call.arguments)[:_LONGEST_ARGUMENTS]}"


def _user_message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _in_words(messages: Sequence[dict[str, Any]]) -> str:
    """Return a conversation as text, for a program that keeps none of its own."""
    parts = []
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
        text = "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))
        parts.append(f"<{'task' if message.get('role') == 'user' else 'result'}>\n{text}\n")
    return "This is what was said before:\n\n" + "\n".join(parts)
