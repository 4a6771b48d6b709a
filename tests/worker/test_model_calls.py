"""The one place that holds a budget while runs work. Trees of runs: `tests/verbs/test_nesting.py`."""

from decimal import Decimal
from typing import Any

import pytest

from subagent_server.run import locks
from subagent_server.run.errors import RunRefused
from subagent_server.run.records import Usage
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import StopRequested
from subagent_server.worker.run_end import end_run
from subagent_server.worker.worker_run import ModelCalls, WorkerRun
from tests.helpers.runs import RUN_ID, STARTED, make_meta, make_request

OTHER_ID = "20261122-093016-417-k3f9qz"
BUDGET = {"name": "reviewer", "limits": {"budgetUsd": "2"}}


def begun(store: RunStore, **request: Any) -> ModelCalls:
    store.create(make_request(**request))
    store.publish(make_meta())
    store.update(RUN_ID, STARTED, make_request().created_at)
    return ModelCalls(store, store.paths.run(RUN_ID))


def spent(usd: str) -> Usage:
    return Usage(turns=1, cost_usd=Decimal(usd))


def test_a_run_without_a_budget_needs_no_leave_after_its_first_call(store: RunStore) -> None:
    calls = begun(store)
    assert calls.begin(spent("1000"))
    calls.end()
    assert calls.unbounded
    assert not (store.paths.run(RUN_ID).directory / "call.lock").exists()


def test_the_usage_of_the_run_itself_counts_although_no_disk_has_taken_it(store: RunStore) -> None:
    calls = begun(store, agent=BUDGET)
    for usd in ("0", "1.99"):
        assert calls.begin(spent(usd))
        calls.end()
    with pytest.raises(RunRefused, match=r"used \$2 of its budget of \$2") as refused:
        calls.begin(spent("2"))
    assert refused.value.failure_code == "budget" and "budgetUsd" in (refused.value.hint or "")


def test_a_cut_call_counts_although_the_journal_has_nothing_of_it(store: RunStore) -> None:
    begun(store)
    store.update(RUN_ID, StopRequested(reason="enough"), make_request().created_at)
    worker = WorkerRun(store.paths.run(RUN_ID).directory, [])
    assert end_run(worker, None, spent("0.3"), [], None).usage == spent("0.3")


def test_a_disk_that_gives_no_locks_ends_no_run_before_its_money_is_spent(store: RunStore) -> None:
    calls = begun(store, agent=BUDGET)
    (store.paths.run(RUN_ID).directory / "calls.lock").mkdir()
    assert calls.begin(spent("1.99"))
    calls.end()
    with pytest.raises(RunRefused, match=r"used \$2 of its budget of \$2"):
        calls.begin(spent("2"))


def test_what_a_call_may_cost_besides_its_tokens_has_to_have_room_beside_other_calls(
    store: RunStore,
) -> None:
    calls = begun(store, agent=BUDGET)
    child = make_meta(OTHER_ID, parent_run_id=RUN_ID, depth=1)
    store.create(make_request(OTHER_ID, parent_run_id=RUN_ID, depth=1))
    store.publish(child)
    lock = locks.open_lock(store.paths.run(OTHER_ID).call_lock)
    locks.lock(lock)
    try:
        assert calls.begin(spent("0.5"), Decimal("0.4"))
        calls.end()
        assert not calls.begin(spent("0.5"), Decimal("0.6")), "two calls at 0.5 each, and 60 searches"
    finally:
        locks.give_back(lock)
    assert calls.begin(spent("0.5"), Decimal("0.6")), "a lone call is always admitted"
    calls.end()


@pytest.mark.parametrize("usage", [{}, {"cost_usd": "0.1", "at_least": ("costUsd",)}], ids=["no", "some"])
def test_a_budget_is_not_kept_with_an_api_that_names_no_tokens(
    store: RunStore, usage: dict[str, Any]
) -> None:
    calls = begun(store, agent=BUDGET)
    assert calls.begin(Usage())
    calls.end()
    with pytest.raises(RunRefused, match="did not say how many tokens"):
        calls.begin(Usage(turns=1, **usage))
