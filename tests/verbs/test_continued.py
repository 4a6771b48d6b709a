"""What cannot be continued is refused in words, and nothing is made (SPEC section 6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.run import transitions
from subagent_server.run.errors import BadArgument, SubagentError, UnknownAgent, UnknownRun
from subagent_server.run.processes import now
from subagent_server.settings import read_settings
from subagent_server.verbs.access import Caller, NotAllowed
from subagent_server.verbs.continue_run import AgentGone, ContinueOrder, NotEnded, continue_run
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import StartOrder, start
from tests.helpers.runs import STARTED
from tests.verbs.holding import holding

AGENT = "---\nname: worker\ndescription: d\nagents: [worker]\n---\nWork."


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The verbs with an agent, in a directory with another one below; no process is started."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/worker.md").write_text(AGENT, encoding="utf-8")
    (tmp_path / "deep").mkdir()
    environment = {"ANTHROPIC_API_KEY": "k", "SUBAGENT_AGENTS": str(tmp_path / "agents")}
    with holding(read_settings(environment=environment, cwd=tmp_path)) as service:
        yield service


def made(service: Service, *happened: transitions.RunEvent, cwd: str | None = None) -> str:
    """Make a run that never works, and let this happen to it."""
    run_id = start(service, StartOrder("worker", "Go.", cwd=cwd)).run_id
    for event in happened:
        service.store.update(run_id, event, now())
    return run_id


def refused(service: Service, error: type[SubagentError], order: ContinueOrder, caller: Caller) -> str:
    """Return the sentence of a continuation that is refused, and check that nothing was made."""
    before = service.store.run_ids()
    with pytest.raises(error) as caught:
        continue_run(service, order, caller)
    assert service.store.run_ids() == before
    return caught.value.sentence


def test_what_cannot_be_continued_is_refused_with_the_reason(service: Service, tmp_path: Path) -> None:
    done = made(service, STARTED, transitions.Finished(summary="Done."))
    deep = made(service, transitions.StopRequested(), cwd="deep")
    (tmp_path / "deep").rmdir()
    user = Caller()
    cases: list[tuple[type[SubagentError], ContinueOrder, str]] = [
        (BadArgument, ContinueOrder(done), "say in `prompt` what it should do next"),
        (BadArgument, ContinueOrder(done, " "), "say in `prompt` what it should do next"),
        (BadArgument, ContinueOrder(done, "Go.", ["nowhere"]), "cannot be read"),
        (BadArgument, ContinueOrder(deep, "Go."), f"in which run {deep} worked is gone: make it again"),
        (NotEnded, ContinueOrder(made(service), "Go."), "cannot be continued yet"),
        (UnknownRun, ContinueOrder("20990101-000000-000-aaaaaa"), "There is no run"),
    ]
    for error, order, words in cases:
        assert words in refused(service, error, order, user)


def test_an_agent_file_that_has_changed_its_runner_or_broken_or_gone_refuses_the_run(
    service: Service, tmp_path: Path
) -> None:
    file, user = tmp_path / "agents/worker.md", Caller()
    parent = made(service)
    child = start(service, StartOrder("worker", "Go."), Caller(parent)).run_id
    service.store.update(child, transitions.StopRequested(), now())
    order = ContinueOrder(child, "Go.")
    file.write_text("---\nname: worker\nrunner: command\ncommand: ls\n---\nx", encoding="utf-8")
    assert "by the runner messages, and agent worker has command" in refused(
        service, BadArgument, order, user
    )
    file.write_bytes(b"---\nname: worker\n---\nNot UTF-8: \xff.")
    assert "There is no agent 'worker' (" in refused(service, UnknownAgent, order, user)
    file.unlink()
    gone = refused(service, AgentGone, order, user)
    assert f"put its file '{file}' back, name its directory with --agents" in gone, "it may be elsewhere"
    stored = ContinueOrder(child, "Go.", stored_agent=True)
    assert "may not use a stored definition" in refused(service, NotAllowed, stored, Caller(parent))
    assert continue_run(service, stored).continues_run_id == child, "a user may"


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_a_silent_run_is_continued_if_its_end_will_be_known(
    service: Service, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name, value in {"kind": kind, "host": "h1"}.items():
        monkeypatch.setattr(service.launcher, name, value)
    old = made(service, STARTED, transitions.StopRequested())
    run = service.store.paths.run(old)
    run.shim_claim.touch()
    run.live_lock.unlink()  # its starter has let go of it
    order = ContinueOrder(old, "Go.")
    if kind == "local":  # it has no heartbeat
        assert "cannot be seen here whether its processes are gone" in refused(
            service, BadArgument, order, Caller()
        )
    else:
        assert continue_run(service, order).continues_run_id == old  # and waits for that end
