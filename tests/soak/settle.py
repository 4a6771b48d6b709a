"""The end of a soak: what the files say before anybody reads them, and that nothing is left after."""

from collections import Counter
from collections.abc import Iterator

from subagent_server.run import locks
from subagent_server.run.errors import SubagentError, UnknownRun
from subagent_server.run.records import RunMeta
from subagent_server.verbs.reconcile import observe
from tests.helpers.wait import wait_for
from tests.soak.excuses import Excuses
from tests.soak.field import Field, Found
from tests.soak.judge import gather
from tests.soak.orders import Order

_END_SECONDS = 90.0
"""How long after the last kill runs may still work, on a machine that is busy."""
_GONE_SECONDS = 30.0
_RECONCILE_ATTEMPTS = 3


def untrue(ground: Field, excuses: Excuses) -> Iterator[str]:
    """Wait until every run that is kept has ended by itself; yield those whose raw file is not true then.

    Only where the shim of a run, or whoever started it, was killed may its file go on saying that it works
    until somebody reads it (SPEC section 4).
    """
    try:
        wait_for(lambda: not _kept(ground), _END_SECONDS, "all runs to end")
    except AssertionError:
        yield from (f"{meta.run_id} is kept and does not end" for meta in _kept(ground))
    told = gather(ground)
    for meta in ground.working():
        order = Order.of(ground.store.read_request(meta.run_id).prompt)
        hit = told.hit.get(meta.run_id, Counter())
        shim_died = hit["shim"] or hit["reconcile"] >= _RECONCILE_ATTEMPTS or any("." in kind for kind in hit)
        starter_died = told.starter.get(order.order_id) in told.dead
        if not excuses.take(
            "its raw file waits for a reader",
            bool(shim_died) or meta.parent_run_id is not None or starter_died,
        ):
            yield f"{meta.run_id} is {meta.status} on disk; nobody works on it, and its shim was never hit"


def _kept(ground: Field) -> list[RunMeta]:
    """Return the runs that have not ended and whose shim lives."""
    return [m for m in ground.working() if locks.is_held(ground.store.paths.run(m.run_id).live_lock)]


def unsettled(ground: Field) -> Iterator[str]:
    """Read every run for the last time, until nothing lives; yield what does not end."""
    try:
        wait_for(lambda: not _living(ground), _GONE_SECONDS, "the end of all runs")
        wait_for(lambda: not list(_left(ground)), _GONE_SECONDS, "the end of all processes")
        wait_for(lambda: len(_zygotes(ground)) <= 1, _GONE_SECONDS, "the leave of all older warm processes")
    except AssertionError:
        yield from (f"run {run_id} does not end" for run_id in _living(ground))
        for found in _left(ground):
            yield f"{found.kind} {found.identity.pid} of run {found.run_id} is still there"
        if len(zygotes := _zygotes(ground)) > 1:
            yield f"{len(zygotes)} warm processes are there, and one version is installed"


def _left(ground: Field) -> Iterator[Found]:
    """Yield what should end with the last run: all but the warm process, which waits for the next."""
    return (found for found in ground.members() if found.kind not in ("zygote", "spare"))


def _zygotes(ground: Field) -> list[Found]:
    return [found for found in ground.members() if found.kind == "zygote"]


def _living(ground: Field) -> list[str]:
    return [run_id for run_id in ground.store.run_ids() if _lives(ground, run_id)]


def _lives(ground: Field, run_id: str) -> bool:
    try:
        return observe(ground.store, run_id).live is not False
    except UnknownRun:
        return False  # a start that never was
    except SubagentError:
        return False  # the doctor tells
