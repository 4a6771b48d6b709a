"""The first request of a run to its model, without a call: made by a real run in a temporary runs root.

The worker that builds the request is that of every run; a script answers it. So what is shown cannot differ
from what is sent.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.follow import STOP_WAIT_SECONDS
from subagent_server.cli.console.session import Session
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument
from subagent_server.domain.records import RunMeta
from subagent_server.service.access import USER
from subagent_server.service.changes import Changes, Wait, wait_until
from subagent_server.service.context import Service, open_service
from subagent_server.service.open_run import open_run
from subagent_server.service.scripted import new_key, scripted_environment
from subagent_server.service.start import StartOrder, start_agent
from subagent_server.service.stop import stop
from subagent_server.service.trusting import TrustCheck
from subagent_server.simulator import Simulator
from subagent_server.simulator.request import characters, input_tokens, tokens_of
from subagent_server.simulator.script import Script

BOUND_SECONDS = 180.0
"""How long the run may take to its first request, with the start of its MCP servers."""

_ANSWER = Script.model_validate({"turns": [{"text": "(nobody reads this)"}], "after": "repeat_last"})


@dataclass(frozen=True)
class FirstRequest:
    """The body of a request, and the names of the MCP servers whose tools are missing in it."""

    body: dict[str, Any]
    missing_servers: list[str]

    @property
    def estimated_tokens(self) -> dict[str, int]:
        """The size of the request and of its parts: four characters are taken for a token."""
        parts = {key: tokens_of(characters(self.body.get(key) or [])) for key in ("system", "tools")}
        total = input_tokens(self.body)
        return {"total": total, **parts, "messages": total - sum(parts.values())}


def first_request(session: Session, order: StartOrder, *, with_servers: bool) -> FirstRequest:
    """Return what the model of a run would get first; `with_servers` starts the MCP servers of the agent.

    Raises:
        NotTrusted, UnknownAgent, BadArgument: the run would not start.
        EarlyExit: it would fail before its first request (1), or is too slow (124).
    """
    session.check_is_user()
    if not order.prompt.strip():
        raise BadArgument("The prompt is empty: say what the agent shall do.")
    agent = session.service.registry.get(order.agent)
    trust_check = TrustCheck(session.service)
    trust_check.check(agent)
    if with_servers:
        trust_check.equipped(agent)
    left_out = [] if with_servers else [*agent.mcp_servers, *agent.named_servers]
    shown = agent.model_copy(update={"mcp_servers": {}, "named_servers": []}) if left_out else agent
    key = new_key()
    with Simulator(_ANSWER, key=key) as simulator, _passing_service(session, simulator, key) as service:
        meta = _ended(service, shown, order)
        requests = simulator.requests
    if not requests:
        raise EarlyExit(ExitCode.FAILED, _why_not(agent, meta))
    body: dict[str, Any] = requests[0].body
    return FirstRequest(body, left_out)


@contextmanager
def _passing_service(session: Session, simulator: Simulator, key: str) -> Iterator[Service]:
    """Give a service with a temporary directory of runs. The trust in its agents has been checked before."""
    settings = session.settings
    environment = {
        **scripted_environment(settings.environment, key, simulator.base_url),
        "OTEL_SDK_DISABLED": "true",
    }
    with tempfile.TemporaryDirectory(prefix="subagent-prompt-", ignore_cleanup_errors=True) as directory:
        root = Path(directory, "runs")
        yield open_service(replace(settings, runs_root=root, environment=environment, trusts_all=True))


def _ended(service: Service, agent: AgentDefinition, order: StartOrder) -> RunMeta:
    """Return a run of the agent when it has ended and none of its processes is left."""
    run_id = start_agent(service, agent, order, USER).run_id

    def check() -> RunMeta | None:
        observed = open_run(service, run_id)
        return observed.meta if observed.meta.ended_at is not None and not observed.live else None

    try:
        if (meta := _waited(service, run_id, check)) is not None:
            return meta
        raise EarlyExit(ExitCode.TIMED_OUT, f"there was no request to a model after {BOUND_SECONDS:g} s.")
    except BaseException:
        stop(service, run_id)
        _waited(service, run_id, check, STOP_WAIT_SECONDS)
        raise


def _waited(
    service: Service, run_id: str, check: Callable[[], RunMeta | None], seconds: float = BOUND_SECONDS
) -> RunMeta | None:
    changes = Changes(service.store)
    try:
        return asyncio.run(wait_until(changes, check, Wait(seconds, frozenset([run_id]))))
    finally:
        changes.close()


def _why_not(agent: AgentDefinition, meta: RunMeta) -> str:
    why = meta.error.message if meta.error is not None else "it ended before."
    return for_people(f"a run of {agent.name} would never call its model: {why}")
