"""The next step of a view, fitted to the state of the run, and said as its reader takes it.

A model reads tool calls, a person reads commands: the two implementations of `NextCalls`.
"""

from collections.abc import Callable
from typing import Protocol

from subagent_server.domain.records import Message, RunMeta
from subagent_server.domain.states import MessageStatus, Status


class NextCalls(Protocol):
    """How a reader makes the calls that a view names."""

    def wait(self, run_id: str) -> str:
        """Return the call that waits for the run."""

    def wait_for_several(self) -> str:
        """Return the call that waits for several runs."""

    def answer(self, run_id: str, message_id: str) -> str:
        """Return the call that answers a question."""

    def take_answer(self, run_id: str, message_id: str, *, is_there: bool) -> str:
        """Return the call by which the asker takes an answer, waiting unless it is there."""

    def logs(self, run_id: str) -> str:
        """Return the call that shows the log."""

    def whole_result(self, run_id: str) -> str:
        """Return the call that shows the whole result."""

    def carry_on(self, run_id: str, prompt: str | None = None) -> str:
        """Return the call that continues the run."""

    def merge(self, run_id: str) -> str:
        """Return the call that merges what the run has changed."""


class ToolCalls:
    """Next calls for a model, with waits up to the timeout of its client."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait = f"waitSeconds={wait_seconds:g}"

    def wait(self, run_id: str) -> str:
        """Return the call that waits for the run."""
        return f'check_status(runId="{run_id}", {self._wait})'

    def wait_for_several(self) -> str:
        """Return the call that waits for several runs."""
        return f"wait_for_runs({self._wait})"

    def answer(self, run_id: str, message_id: str) -> str:
        """Return the call that answers a question."""
        return f'reply_subagent(runId="{run_id}", messageId="{message_id}", answer="...", {self._wait})'

    def take_answer(self, run_id: str, message_id: str, *, is_there: bool) -> str:
        """Return the call by which the asker takes an answer, waiting unless it is there."""
        waiting = "" if is_there else f", {self._wait}"
        return f'check_status(runId="{run_id}", messageId="{message_id}"{waiting})'

    def logs(self, run_id: str) -> str:
        """Return the call that shows the log."""
        return f'get_logs(runId="{run_id}")'

    def whole_result(self, run_id: str) -> str:
        """Return the call that shows the whole result."""
        return f'get_logs(runId="{run_id}", stream="result")'

    def carry_on(self, run_id: str, prompt: str | None = None) -> str:
        """Return the call that continues the run."""
        with_prompt = "" if prompt is None else f', prompt="{prompt}"'
        return f'continue_run(runId="{run_id}"{with_prompt})'

    def merge(self, run_id: str) -> str:
        """Return the call that merges what the run has changed."""
        return f'merge_run(runId="{run_id}")'


AS_TOOLS = ToolCalls(45)
"""Next calls for a model whose client is not known."""


class Commands:
    """Next calls for a person: commands, as `command` makes them of their words."""

    def __init__(self, command: Callable[..., str]) -> None:
        self._command = command

    def wait(self, run_id: str) -> str:
        """Return the command that waits for the run."""
        return self._said("wait", run_id)

    def wait_for_several(self) -> str:
        """Return the command that shows all runs as they change."""
        return self._said("ls", "--watch")

    def answer(self, run_id: str, message_id: str) -> str:
        """Return the command that answers a question."""
        return self._said("reply", run_id, message_id, "ANSWER")

    def take_answer(self, run_id: str, message_id: str, *, is_there: bool) -> str:
        """Return the command by which the asker sees an answer."""
        return self._said("show", run_id)

    def logs(self, run_id: str) -> str:
        """Return the command that shows the log."""
        return self._said("logs", run_id)

    def whole_result(self, run_id: str) -> str:
        """Return the command that shows the whole result."""
        return self._said("show", run_id)

    def carry_on(self, run_id: str, prompt: str | None = None) -> str:
        """Return the command that continues the run."""
        return self._said("continue", run_id, *([] if prompt is None else [prompt]))

    def merge(self, run_id: str) -> str:
        """Return the command that merges what the run has changed."""
        return self._said("merge", run_id)

    def _said(self, *words: str) -> str:
        return f"`{self._command(*words)}`"


_MEND = "Mend what the error names"
_AFTER_FAILURE = {
    "config": f"{_MEND} (the agent file or a variable), then start it again.",
    "launch_failed": f"{_MEND}, then start it again: it had not begun.",
    "storage": f"{_MEND}; then {{on}} carries it on.",
    "model_error": f"{_MEND}; then {{on}} carries it on.",
    "max_turns": "{on} carries it on with as many turns again.",
    "timeout": "{on} carries it on with as much time again.",
    "budget": "{on} carries it on with as much money again, if it is worth that.",
    "ask_timeout": "{on_with_answer} carries it on with your answer.",
    "invalid_output": "{on_with_result} lets it try once more; {result} shows its text.",
    "agent_error": "{logs} shows why; {on} carries it on, or start it again with a task that avoids that.",
    "crashed": "{logs} shows how far it came; {on} carries it on from there.",
    "lost": "{logs} shows how far it came; {on} carries it on from there.",
}
"""What helps after a failure, by its code; `docs/meta-file.md` says what each means."""


def for_parent(meta: RunMeta, calls: NextCalls) -> str:
    """Return the next step of the parent of a run."""
    run_id = meta.run_id
    if meta.pending:
        return f"The agent needs your answer. Next: {calls.answer(run_id, meta.pending[0].message_id)}."
    if not meta.status.is_terminal:
        return f"Not done yet. Next: {calls.wait(run_id)}, or {calls.wait_for_several()} for several."
    if meta.status is Status.COMPLETED:
        return f"Done. {calls.whole_result(run_id)} has the whole result."
    if meta.status is Status.STOPPED:
        return (
            f"Stopped: nothing is left to do. {calls.logs(run_id)} shows how far it came, and "
            f"{calls.carry_on(run_id)} would take it up again."
        )
    code = meta.error.code if meta.error is not None else "lost"
    return "Failed. " + _AFTER_FAILURE.get(code, _AFTER_FAILURE["lost"]).format(
        logs=calls.logs(run_id),
        result=calls.whole_result(run_id),
        on=calls.carry_on(run_id),
        on_with_answer=calls.carry_on(run_id, "YOUR ANSWER"),
        on_with_result=calls.carry_on(run_id, "Give the result by final_answer."),
    )


def for_itself(meta: RunMeta, waiting: Message | None, calls: NextCalls) -> str:
    """Return the next step of the run itself; `waiting` is its first question that it has not closed."""
    if meta.status.is_terminal:
        return f"Your run is {meta.status.value}: nothing more can be done in it."
    if waiting is None:
        return "Your run goes on. update_status says how far it is, or ends it."
    is_there = waiting.message_status is not MessageStatus.PENDING
    return (
        f"Your question {waiting.message_id} {'has' if is_there else 'waits for'} an answer. Next: "
        f"{calls.take_answer(meta.run_id, waiting.message_id, is_there=is_there)}."
    )


def for_asker(meta: RunMeta, message: Message, calls: NextCalls) -> str:
    """Return the next step of the asker of a question that it has named."""
    if message.answer_content is not None:
        return "Your question is answered: go on with the answer."
    if message.message_status is MessageStatus.PENDING:
        return f"No answer yet. Next: {calls.take_answer(meta.run_id, message.message_id, is_there=False)}."
    return "No answer came and none will: go on without one."
