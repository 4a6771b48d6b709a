"""The order to start the task of a run once more, as a new run.

Tested in `tests/cli/test_rerun.py`.
"""

from subagent_server.domain.errors import BadArgument
from subagent_server.domain.secrets import MASK
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run
from subagent_server.service.start import StartOrder


def order_of(service: Service, run_id: str, caller: Caller = USER) -> StartOrder:
    """Return the order that run `run_id` was started by, for the agent as its file is now.

    What is read is data of the run directory: it names an agent of the caller, whom a start judges as ever.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        ForeignRoot: the root does not have our mark.
        BadArgument: the prompt is not kept whole.
    """
    service.store.paths.check_ours()
    meta = open_run(service, run_id, caller).meta
    request = service.store.read_request(run_id)
    if MASK in request.prompt:
        raise BadArgument(
            f"The prompt of run {run_id} held a secret, which is not kept: start a new run with "
            "the whole prompt."
        )
    if not request.prompt.strip():
        raise BadArgument(
            f"Run {run_id} has no prompt of its own, because it carried another run on: rerun run "
            f"{request.continues_run_id}, or start a new one."
        )
    return StartOrder(
        agent=meta.agent_name,
        prompt=request.prompt,
        inputs=list(request.inputs),
        cwd=request.cwd,
        label=request.label,
    )
