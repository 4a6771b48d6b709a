"""How many runs may be below one, and what they have cost: counted over the whole tree."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from subagent_server.process.launcher import LaunchPackage
from subagent_server.run import transitions
from subagent_server.run.errors import RunRefused, SubagentError, UnreadableMeta
from subagent_server.run.paths import RunPaths
from subagent_server.run.processes import now
from subagent_server.run.records import Failure, RunMeta, Usage
from subagent_server.settings import read_settings
from subagent_server.verbs.access import Caller, NotAllowed
from subagent_server.verbs.reconcile import (
    observe,
    record_tree_usage,
    stop_children,
    tree_cost,
    tree_is_gone,
)
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import StartOrder, start
from subagent_server.verbs.tree_limits import budgets_of, exhausted, refuse_spent
from subagent_server.worker.worker_run import ModelCalls
from tests.helpers.state_files import counted_state_files
from tests.verbs.holding import HoldingLauncher, Kept, holding


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The verbs, with an agent that may start itself, at most three below one, and no processes."""
    text = "---\nname: again\ndescription: It goes on.\nagents: [again]\n---\nGo on."
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "again.md").write_text(text, encoding="utf-8")
    environment = {
        "SUBAGENT_MAX_DESCENDANTS": "3",
        "SUBAGENT_AGENTS": "agents",
        "ANTHROPIC_API_KEY": "k",
    }
    with holding(read_settings(environment=environment, cwd=tmp_path)) as service:
        yield service


def begun(service: Service, parent: str | None = None) -> RunMeta:
    """Start a run as `parent` would, without a worker: nothing that its agent asks for is looked at."""
    return start(service, StartOrder("again", "Go on."), Caller(parent))


def test_to_count_runs_no_state_is_read_while_there_are_few(service: Service) -> None:
    root, reads = begun(service).run_id, []
    for _ in range(2):
        with counted_state_files() as count:
            begun(service, root)
        reads.append(count.reads)
    assert reads[0] == reads[1], "there was one more"


@pytest.mark.race
def test_starts_at_one_moment_anywhere_in_a_tree_do_not_become_too_many(service: Service) -> None:
    root = begun(service)
    child = begun(service, root.run_id)

    def attempt(number: int) -> str | None:
        parent = root if number % 2 else child
        try:
            return begun(service, parent.run_id).run_id
        except NotAllowed as error:
            assert "3 runs are at work below" in error.sentence and "3 is the limit" in error.sentence
            return None

    with ThreadPoolExecutor(8) as threads:
        started = [run_id for run_id in threads.map(attempt, range(8)) if run_id]
    assert len(started) == 2, "and the one before makes three"
    assert len(service.store.run_ids()) == 4, "what was refused has left nothing"
    marks = service.store.children_of(root.run_id) + service.store.children_of(child.run_id)
    assert sorted(marks) == sorted([child.run_id, *started])
    service.store.update(started[0], transitions.StopRequested(), now())
    assert begun(service, child.run_id).depth == 2, "one that has ended makes room"


def test_who_died_and_was_not_read_since_counts_no_more(service: Service) -> None:
    root = begun(service)
    dead = [begun(service, root.run_id).run_id for _ in range(3)]
    for run_id in dead:
        os.close(service.launcher.locks.pop())  # type: ignore[attr-defined]
        assert service.store.read(run_id).status == "ready"
    assert begun(service, root.run_id).parent_run_id == root.run_id
    assert all(service.store.read(run_id).error is not None for run_id in dead)


def test_the_depth_of_a_tree_is_bounded_with_a_sentence(service: Service) -> None:
    lowest = begun(service)
    for _ in range(3):
        lowest = begun(service, lowest.run_id)
    with pytest.raises(
        NotAllowed, match=r"3 levels below the first run, and 3 is the limit: do the work here"
    ):
        begun(service, lowest.run_id)


def paid(service: Service, run_id: str, cost: str, *, ends: bool = False) -> None:
    usage = Usage(turns=1, cost_usd=cost)  # type: ignore[arg-type]
    failure = Failure(code="agent_error", message="Over.")
    event = (
        transitions.RunFailed(failure=failure, usage=usage) if ends else transitions.UsageSettled(usage=usage)
    )
    service.store.update(run_id, event, now())


def bound(service: Service, run_id: str) -> None:
    """Let the agent of a run have a budget of 2 dollars."""
    request = service.store.read_request(run_id)
    agent = {**request.agent, "limits": {"budgetUsd": "2"}}
    changed = request.model_copy(update={"agent": agent})
    service.store.paths.run(run_id).request.path.write_bytes(changed.to_json())


def test_a_child_that_ends_after_its_parent_still_adds_its_cost_all_the_way_up(
    service: Service,
) -> None:
    root = begun(service).run_id
    child = begun(service, root).run_id
    low = begun(service, child).run_id
    paid(service, root, "1", ends=True)
    paid(service, child, "0.25", ends=True)
    assert service.store.read(root).with_descendants.turns == 1, "its child had not ended when it did"
    paid(service, low, "0.4")
    service.store.paths.change_mark(root).unlink()
    assert str(tree_cost(service.store, root)) == "1.65", "what still works below is in the figure"
    paid(service, low, "0.5", ends=True)
    for _ in range(2):
        record_tree_usage(service.store, low)
    meta = service.store.read(root)
    assert meta.usage.turns == 1 and meta.with_descendants.turns == 3
    assert str(meta.with_descendants.cost_usd) == "1.75" and meta.status == "failed"
    assert [step.event.value for step in meta.transitions] == ["failed", "usage_settled"]
    assert service.store.read(child).with_descendants.turns == 2


@pytest.mark.parametrize("state", [None, "{", '{"schemaVersion": 99'], ids=["gone", "damaged", "newer"])
def test_a_child_is_ended_whatever_has_become_of_its_parent(service: Service, state: str | None) -> None:
    root = begun(service).run_id
    child = begun(service, root).run_id
    paid(service, root, "1", ends=True)
    paid(service, child, "1", ends=True)
    os.close(service.launcher.locks.pop())  # type: ignore[attr-defined]
    meta = service.store.paths.run(root).meta.path
    text = meta.read_text(encoding="utf-8").replace('{\n "schemaVersion": 2', state or "")
    meta.unlink() if state is None else meta.write_text(text, encoding="utf-8")
    assert observe(service.store, child).live is False
    assert tree_is_gone(service.store.paths.run(child)) and child not in service.store.live_ids()


def test_a_run_is_bound_by_the_budgets_above_it_over_their_whole_trees(service: Service) -> None:
    root = begun(service).run_id
    first, second = begun(service, root).run_id, begun(service, root).run_id
    for run_id in (root, second):
        bound(service, run_id)
    budgets = budgets_of(service.store, service.store.read(second))
    assert [(each.run_id, str(each.usd)) for each in budgets] == [(second, "2"), (root, "2")]
    paid(service, second, "0.7")
    paid(service, first, "1.2", ends=True)
    assert exhausted(service.store, budgets) is None
    paid(service, root, "0.1")
    assert str(tree_cost(service.store, root)) == "2.0"
    assert exhausted(service.store, budgets) == (
        f"Run {root} and those below it have used $2 of its budget of $2."
    )
    with pytest.raises(RunRefused) as refused:
        refuse_spent(exhausted(service.store, budgets))
    assert refused.value.failure_code == "budget"
    with pytest.raises(NotAllowed, match="No other agent is started for it"):
        begun(service, second)


def test_a_budget_refuses_runs_below_it_whose_cost_nobody_knows(service: Service, tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    text = (agents / "again.md").read_text(encoding="utf-8")
    unpriced = text.replace("agents:", "model: other-model\nbaseUrl: http://127.0.0.1:9\nagents:")
    (agents / "again.md").write_text(text.replace("agents:", "budgetUsd: 2\nagents:"), encoding="utf-8")
    root = begun(service).run_id
    (agents / "again.md").write_text(unpriced, encoding="utf-8")
    refused = begun(service, root)
    assert refused.error is not None and refused.error.code == "config"
    assert f"budgetUsd of run {root} cannot be kept, because no price is known" in refused.error.message
    assert begun(service).error is None, "without a budget it works"
    (agents / "again.md").write_text(text.replace("agents:", "runner: codex\nagents:"), encoding="utf-8")
    refused = begun(service, root)
    assert (
        refused.error
        and f"budgetUsd of run {root} cannot be kept by the runner codex" in refused.error.message
    )
    (agents / "again.md").write_text(
        "---\ndescription: Checks.\nrunner: command\ncommand: /bin/true\n---\n", encoding="utf-8"
    )
    assert begun(service, root).error is None, "it may cost nothing"


@pytest.mark.process
def test_a_program_below_a_budget_gets_what_is_left_of_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages: list[LaunchPackage] = []
    monkeypatch.setattr(Kept, "start", lambda _, package: packages.append(package))
    file = tmp_path / "agents" / "again.md"
    text = file.read_text(encoding="utf-8").replace("agents:", "budgetUsd: 2\nagents:")
    file.write_text(text, encoding="utf-8")
    root = begun(service).run_id
    paid(service, root, "0.7")
    for own in ("", "budgetUsd: 0.5\n", "budgetUsd: 3\n"):
        keys = f"runner: claude\ncommand: /bin/true\n{own}agents:"
        file.write_text(text.replace("budgetUsd: 2\nagents:", keys), encoding="utf-8")
        begun(service, root)
    left = [package.definition["limits"]["budgetUsd"] for package in packages]
    assert left == ["2", "1.3", "0.5", "1.3"]


@pytest.mark.race
def test_of_calls_at_one_moment_only_those_begin_that_the_rest_of_the_budget_has_room_for(
    service: Service,
) -> None:
    root = begun(service).run_id
    lead = begun(service, root).run_id
    hands = [begun(service, lead).run_id for _ in range(2)]
    bound(service, root)
    calls = {i: ModelCalls(service.store, service.store.paths.run(i)) for i in (root, lead, *hands)}
    first, second = (calls[i] for i in hands)
    assert first.begin(Usage()) and not second.begin(Usage()), "what a call costs is not known yet"
    paid(service, hands[0], "0.6")
    first.end()
    assert second.begin(Usage()) and calls[lead].begin(Usage()), (
        "0.6 are spent, and two calls may cost as much again"
    )
    assert not calls[root].begin(Usage()) and not first.begin(Usage())
    paid(service, lead, "0.6", ends=True)
    assert not first.begin(Usage()), "an ended run may still be in a call, whose cost is not recorded yet"
    calls[lead].end()
    second.end()
    paid(service, hands[1], "0.6")
    assert tree_cost(service.store, root) < 2 and first.begin(Usage()), (
        "a lone call may begin while money is left"
    )
    first.end()
    service.store.update(
        hands[0], transitions.UsageSettled(usage=Usage(turns=2, cost_usd=Decimal("0.9"))), now()
    )
    with pytest.raises(RunRefused, match=r"used \$2.1 of its budget of \$2"):
        second.begin(Usage())
    paid(service, root, "0", ends=True)
    assert not second.begin(Usage()), "it is about to be ended, as the first run was"


def test_a_mark_of_a_run_that_names_another_parent_counts_for_nothing(service: Service) -> None:
    root, other = begun(service).run_id, begun(service).run_id
    paid(service, other, "5")
    paths = service.store.paths.run(root)
    paths.children.path.mkdir()
    for name in (other, root, "20990101-000000-000-aaaaaa"):
        (paths.children.path / name).touch()
    paid(service, root, "1")
    assert service.store.read(root).with_descendants.turns == 1
    assert tree_cost(service.store, root) == 1
    stop_children(service.store, root)
    assert service.store.read(other).status == "ready", "it is not ended with what is not its parent"


def test_a_start_whose_parent_becomes_unreadable_amid_it_holds_no_lock(service: Service) -> None:
    root = begun(service).run_id

    class Breaking(HoldingLauncher):
        def reserve(self, run: RunPaths) -> Kept:
            service.store.paths.run(root).meta.path.write_text("{", encoding="utf-8")
            return super().reserve(run)

    with pytest.raises(UnreadableMeta):
        begun(replace(service, launcher=Breaking()), root)
    (child,) = service.store.children_of(root)
    assert observe(service.store, child).live is False


def test_a_tree_cannot_be_entered_without_its_lock(service: Service) -> None:
    root = begun(service)
    service.store.paths.run(root.run_id).tree_lock.path.mkdir()
    with pytest.raises(SubagentError):
        begun(service, root.run_id)
    assert service.store.run_ids() == [root.run_id] and not service.store.children_of(root.run_id)
