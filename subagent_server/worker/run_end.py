"""Writing how a run ended: by its worker, or for a worker that is gone."""

import os
from typing import Any, NoReturn

from subagent_server.loop.runner import Outcome
from subagent_server.run import transitions
from subagent_server.run.errors import SubagentError
from subagent_server.run.records import Failure, RunMeta, RunResult, Usage, WorktreeState, worktree_view
from subagent_server.run.states import cut, maybe_cut
from subagent_server.run.stderr import failpoint, flush, log
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import RunEvent
from subagent_server.verbs.export_run import export_end
from subagent_server.verbs.reconcile import reconcile_after_worker, record_tree_usage, stop_children
from subagent_server.worker.worker_run import WorkerRun


def end_run(
    run: WorkerRun,
    outcome: Outcome | None,
    usage: Usage | None,
    executed: list[str],
    worktree: WorktreeState | None,
) -> RunMeta:
    """Write result, status and usage, then end the children of the run.

    `executed` are files that it has left and that can run code, `worktree` is how it has left its worktree.
    Without an `outcome`, or if another process was first, the run ended from outside: only usage is added.

    Raises:
        SubagentError: neither the result nor the failure to store it could be written.
    """
    if outcome is None:
        meta = run.meta()
    else:
        meta = _written(run, _result(run, outcome, executed, worktree), outcome, usage)
    if usage is not None and meta.usage != meta.usage.merged(usage):
        meta = run.apply(transitions.UsageSettled(usage=usage))
    failpoint("worker.ended")
    stop_children(run.store, run.run_id)
    record_tree_usage(run.store, run.run_id)
    return run.meta()


def end_unbegun(run: WorkerRun, failure: Failure | None = None) -> None:
    """End a run whose worker cannot begin, or need not; its journal has the end too."""
    if failure is not None:
        run.apply(transitions.RunFailed(failure=failure))
    reconcile(run.store, run.run_id)


def exit_worker() -> NoReturn:
    """End this process with code 0, at once, even if its threads still wait for something."""
    flush()
    failpoint("worker.leaving")
    os._exit(0)


def reconcile(store: RunStore, run_id: str, ended: dict[str, Any] | None = None) -> None:
    """Write how a run ended whose worker is gone, or need not work; `ended` is what its shim saw."""
    meta = reconcile_after_worker(store, run_id, ended)
    if not_exported := export_end(store, meta, os.environ):
        log(not_exported)


def _written(run: WorkerRun, result: RunResult, outcome: Outcome, usage: Usage | None) -> RunMeta:
    event: RunEvent
    if result.error is None:
        event = transitions.Finished(summary=result.headline, usage=usage)
    else:
        event = transitions.RunFailed(failure=result.error, summary=result.summary, usage=usage)
    payload = None if outcome.payload is None else run.masker.text(outcome.payload)
    try:
        return run.apply(event, result, None if payload is None else payload.encode("utf-8", "replace"))
    except SubagentError as error:
        failure = Failure(code="storage", message=error.sentence)
        return run.apply(transitions.RunFailed(failure=failure, usage=usage))


def _result(run: WorkerRun, outcome: Outcome, executed: list[str], state: WorktreeState | None) -> RunResult:
    """Return the result of a run without secrets, its error as short as a state may hold it."""
    content = outcome.to_result().model_dump(mode="json", exclude_unset=True)
    if executed:
        content["canRunCode"] = executed
    worktree = run.meta().worktree
    if worktree is not None and state is not None:
        content["worktree"] = worktree_view(worktree, state)
    result = RunResult.model_validate(run.masker.data(content))
    if (failure := result.error) is None:
        return result
    short = {"message": cut(failure.message), "hint": maybe_cut(failure.hint)}
    return result.model_copy(update={"error": failure.model_copy(update=short)})
