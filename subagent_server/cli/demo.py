"""`subagent demo`: a parent hands a review to a subagent, answers its question and gets the result.

Everything is real but the model: a real MCP client starts the real server over stdio, the run is a real
process, its tools read the real repository. With ANTHROPIC_API_KEY set the model is real too.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from mcp import Client, StdioServerParameters

from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.flags import DIRECTORY
from subagent_server.cli.console.output import out
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import one_line
from subagent_server.domain.errors import BadArgument
from subagent_server.host.journal import read_from
from subagent_server.service.context import Service
from subagent_server.simulator import Simulator, load_script

_AGENTS = Path(__file__).with_name("demo_agents")
"""The agents of the demo. The reviewer is a copy of the example of its name: the script fits no other."""
_WAIT_SECONDS = 45
_FOLLOW_SECONDS = 0.25


@dataclass(frozen=True)
class Scene:
    """One demonstration: an agent, its task, and the words of the scripted model."""

    agent: str
    prompt: str
    script: Path


_REVIEW = Scene(
    "reviewer",
    "Review the last commit of this repository (git show HEAD). Ask me once whether to look at correctness "
    "only or at style too, before you judge.",
    Path(__file__).with_name("demo_review.yaml"),
)
_SURVEY = Scene(
    "surveyor",
    "Which issues of the tracker wait longest for an answer? Ask me which area comes first.",
    Path(__file__).with_name("demo_survey.yaml"),
)


@dataclass(frozen=True)
class DemoParent:
    """The parent agent of the demo: prints each call and its answer."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its answer.

        Raises:
            EarlyExit: the tool refused.
        """
        out(f"\nparent → {tool}({_shown(arguments)})")
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=_WAIT_SECONDS + 30)
        if result.is_error:
            raise EarlyExit(
                ExitCode.FAILED, "; ".join(getattr(block, "text", "") for block in result.content)
            )
        answer: dict[str, Any] = result.structured_content or {}
        view = answer.get("updatedMetadata", answer)
        out(f"parent ← {view.get('status')}: {one_line(str(view.get('instructions', '')))}")
        return answer


@click.command()
@click.option(
    "--repo",
    type=DIRECTORY,
    default=".",
    metavar="DIR",
    help="The repository whose last commit is reviewed.  [default: where you stand]",
)
@click.option(
    "--code", is_flag=True, help="Show an agent in code mode instead: one program, many tool calls."
)
@pass_session
def demo(session: Session, repo: Path, code: bool) -> int:
    """Watch a parent hand a review to a subagent, answer its question, and get the result.

    The model is scripted unless ANTHROPIC_API_KEY is set; everything else is real.
    """
    scene = _SURVEY if code else _REVIEW
    root = _repository(session.settings.cwd / repo)
    with _model(scene, session.settings.environment.get("ANTHROPIC_API_KEY")) as environment:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "subagent_server", "serve", "--role", "parent", *_places(session)],
            env={**os.environ, "SUBAGENT_DEMO_PYTHON": sys.executable, **environment},
        )
        view = asyncio.run(_delegate(session.service, parameters, scene, root))
    _conclude(session, scene, view)
    return ExitCode.OK if view.get("status") == "completed" else ExitCode.FAILED


def _repository(path: Path) -> Path:
    """Return the root of the git repository around `path`.

    Raises:
        BadArgument: there is no git, or no repository with a commit.
    """
    command = ["git", "-C", str(path), "rev-parse", "--show-toplevel", "--verify", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except FileNotFoundError as error:
        raise BadArgument("git is not installed: install it to run the demo.") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise BadArgument(
            f"{path} is in no git repository with a commit: give one with --repo DIR."
        ) from error
    return Path(found.stdout.splitlines()[0])


@contextmanager
def _model(scene: Scene, key: str | None) -> Iterator[dict[str, str]]:
    """Print which model is used, and yield the environment variables that select it."""
    if key:
        out("The model is the real one: ANTHROPIC_API_KEY is set, and this will cost a little.")
        yield {}
        return
    out("The model is scripted (set ANTHROPIC_API_KEY for the real one); everything else is real.")
    with Simulator(load_script(scene.script)) as simulator:
        yield {"ANTHROPIC_BASE_URL": simulator.base_url, "ANTHROPIC_API_KEY": "scripted"}


def _places(session: Session) -> list[str]:
    """Return the flags that give the server the agent of the demo and the runs of this command."""
    return ["--agents", str(_AGENTS), "--runs", str(session.settings.runs_root)]


async def _delegate(
    service: Service, parameters: StdioServerParameters, scene: Scene, repository: Path
) -> dict[str, Any]:
    """Start the agent, answer its questions and return the last view; print its log as it grows."""
    async with Client(parameters) as client:
        tools = await client.list_tools()
        out(f"parent sees the tools: {', '.join(tool.name for tool in tools.tools)}")
        parent = DemoParent(client)
        view = await parent.call(f"run_{scene.agent}", prompt=scene.prompt, cwd=str(repository))
        run_id = str(view["runId"])
        following = asyncio.create_task(_follow(service, run_id))
        try:
            while not view.get("result") and "output" not in view and "error" not in view:
                view = await _next(parent, run_id, view)
        finally:
            await asyncio.wait([following], timeout=5)
            following.cancel()
    return view


async def _next(parent: DemoParent, run_id: str, view: dict[str, Any]) -> dict[str, Any]:
    questions = view.get("messages")
    if not questions:
        return await parent.call("check_status", runId=run_id, waitSeconds=_WAIT_SECONDS)
    question = questions[0]
    out(f"parent is asked: {one_line(question['question'])}")
    answer = (question.get("options") or ["Decide yourself."])[0]
    answered = await parent.call(
        "reply_subagent",
        runId=run_id,
        messageId=question["messageId"],
        answer=answer,
        waitSeconds=_WAIT_SECONDS,
    )
    updated: dict[str, Any] = answered["updatedMetadata"]
    return updated


async def _follow(service: Service, run_id: str) -> None:
    """Print run.log as it grows, until the run has ended and every line is printed."""
    run = service.store.paths.run(run_id)
    cursor = 0
    while True:
        ended = service.store.read(run_id).status.is_terminal
        page = read_from(run.log, cursor, 500)
        cursor = page.cursor
        for line in page.lines:
            out(f"   run.log | {line}")
        if ended and not page.lines:
            return
        await asyncio.sleep(_FOLLOW_SECONDS)


def _conclude(session: Session, scene: Scene, view: dict[str, Any]) -> None:
    run_id = str(view["runId"])
    if "error" in view:
        error = view["error"]
        out(f"\nThe run failed with {error['code']}: {error['message']}")
        with suppress(KeyError):
            out(f"hint: {error['hint']}")
    else:
        shape = f", as {scene.agent}'s schema has it" if "output" in view else ""
        out(f"\nresult{shape}:")
        out(json.dumps(view.get("output", view.get("result")), indent=2, ensure_ascii=False))
    run = session.service.store.paths.run(run_id)
    out(f"\nEverything is in {session.shown(run.directory)}: run.log to read, run.meta.json for programs.")
    out(f"Look again with: {session.command('show', run_id)}")


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={one_line(json.dumps(value, ensure_ascii=False))}" for name, value in arguments.items()
    )
