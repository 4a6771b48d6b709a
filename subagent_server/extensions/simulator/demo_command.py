"""`subagent demo`: a parent hands a review to a subagent, answers its question and gets the result.

Everything is real but the model: a real MCP client starts the real server over stdio, the run is a real
process, its tools read the real repository. With ANTHROPIC_API_KEY set the model is real too.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from mcp import Client, MCPError, StdioServerParameters, stdio_client

from subagent_server.agents.templates import EXAMPLE_AGENTS
from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.option_types import DIRECTORY
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    OutputClosed,
    coloured,
    cut,
    escape,
    escape_lines,
    head,
    line_width,
    one_line,
    out,
)
from subagent_server.extensions.simulator import Simulator, load_script
from subagent_server.run.durable import read_from
from subagent_server.run.errors import BadArgument
from subagent_server.run.host_programs import NoHostProgram, system_program
from subagent_server.run.journal import usage_line
from subagent_server.sandbox.readable import working_copies
from subagent_server.verbs.flow_calls import call_lines, calls_of_flow
from subagent_server.verbs.service import Service

_OWN_AGENTS = Path(__file__).with_name("demo_agents")
_TRACKER = Path(__file__).with_name("demo_tracker.py")
_WAIT_SECONDS = 45
_FOLLOW_SECONDS = 0.25
_SAMPLE = """def price(cents: int, discount: float) -> int:
    # TODO: what if the discount is above 1?
    return round(cents * (1 - discount))
"""
_MAX_VALUE = 60
"""Characters of an argument or of a part of the result that are shown."""
_RESULT_LINES = 8
_MOST_CALLS = 20
_SHOWN_TWICE = re.compile(r"\S+ (?:[─·←?✔✘]|→ ask_parent|→ final_answer)")
"""Lines of a log that repeat other lines of the demo, or are book-keeping."""


@dataclass(frozen=True)
class Scene:
    """One demonstration: an agent, the arguments of its tool, and the words of the scripted model.

    With `has_program` the point of it is a program, whose lines are shown too.
    """

    agent: str
    arguments: dict[str, str]
    script: Path
    agents: Path
    has_program: bool = False


_REVIEW = Scene(
    "reviewer",
    {
        "prompt": "Review the last commit of this repository (git show HEAD). Ask me once whether to look at "
        "correctness only or at style too, before you judge."
    },
    Path(__file__).with_name("demo_review.yaml"),
    EXAMPLE_AGENTS,
)
_SURVEY = Scene(
    "surveyor",
    {"prompt": "Which issues of the tracker wait longest for an answer? Ask me which area comes first."},
    Path(__file__).with_name("demo_survey.yaml"),
    _OWN_AGENTS,
    has_program=True,
)
_COUNCIL = Scene("council", {}, Path(__file__).with_name("demo_council.yaml"), _OWN_AGENTS)


class DemoParent:
    """The parent agent of the demo: prints each call and its answer, and the log of the run between them."""

    def __init__(self, client: Client, service: Service, scene: Scene) -> None:
        self._client = client
        self._service = service
        self._scene = scene
        self._cursor = 0
        self.run_id: str | None = None

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return the view in its answer; a refusal is a view with an error."""
        shown = {name: one_line(json.dumps(value, ensure_ascii=False)) for name, value in arguments.items()}
        words = ", ".join(f"{name}={cut(text, _MAX_VALUE)}" for name, text in shown.items())
        _tell(f"parent → {tool}({words})", "blue")
        result = await self._client.call_tool(tool, arguments, read_timeout_seconds=_WAIT_SECONDS + 30)
        self._print_log()  # first, or lines from before the answer would come after it
        answer: dict[str, Any] = result.structured_content or {}
        view: dict[str, Any] = answer.get("updatedMetadata", answer)
        if result.is_error:
            why = "; ".join(getattr(block, "text", "") for block in result.content)
            view = {"status": "refused", "error": {"code": tool, "message": why}}
        words, colour = _answer_line(view)
        out(coloured(one_line(f"parent ← {words}"), colour))
        return view

    async def follow(self) -> None:
        """Print the log of the run as it grows, until the task is cancelled."""
        while True:
            self._print_log()
            await asyncio.sleep(_FOLLOW_SECONDS)

    def _print_log(self) -> None:
        while self.run_id is not None:
            page = read_from(self._service.store.paths.run(self.run_id).log, self._cursor, 500)
            if not page.lines:
                return
            self._cursor = page.cursor
            for line in page.lines:
                is_detail = line[:1].isspace() and not self._scene.has_program
                if not is_detail and not _SHOWN_TWICE.match(line):
                    _tell(f"    {line}", "grey")


@click.command()
@click.option(
    "--repo",
    type=DIRECTORY,
    metavar="DIR",
    help="The repository whose last commit is reviewed.  [default: the one here, else one that is made]",
)
@click.option(
    "--code", is_flag=True, help="Show an agent in code mode instead: one program, many tool calls."
)
@click.option("--flow", is_flag=True, help="Show a program of agents instead: several side by side.")
@pass_session
def demo(session: Session, repo: Path | None, code: bool, flow: bool) -> int:
    """Watch a parent hand a review to a subagent, answer its question, and get the result.

    The model is scripted unless ANTHROPIC_API_KEY is set; everything else is real.
    """
    if code and flow:
        raise click.UsageError("--code and --flow are two demonstrations: give one of them.")
    session.check_is_user()  # a run has the agents of its tree alone
    scene = _SURVEY if code else _COUNCIL if flow else _REVIEW
    key = session.settings.environment.get("ANTHROPIC_API_KEY")
    flags = ["--agents", str(scene.agents.resolve()), "--agent", scene.agent]
    flags += ["--runs", str(session.settings.runs_root)]
    with _repository(session, repo) as root, _model(scene, key) as environment:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "subagent_server", "serve", "--role", "parent", *flags],
            env={
                **os.environ,
                "SUBAGENT_DEMO_PYTHON": sys.executable,
                "SUBAGENT_DEMO_TRACKER": _TRACKER.read_text(encoding="utf-8"),
                **environment,
            },
        )
        try:
            view = asyncio.run(_delegate(session.service, server, scene, root))
        except (MCPError, OSError, OutputClosed, EarlyExit, ExceptionGroup) as error:
            raise _lost(error) from None
    _conclude(session, view)
    return ExitCode.OK if view.get("status") == "completed" else ExitCode.FAILED


def _lost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, (MCPError, OSError)):
        return error
    why = one_line(str(error))
    return EarlyExit(
        ExitCode.ENVIRONMENT,
        f"the demo lost its server ({why}): fix what the server said above, then try again.",
    )


@contextmanager
def _repository(session: Session, named: Path | None) -> Iterator[Path]:
    """Yield the root of the repository to review: if none is named and none is here, one made for the demo.

    Raises:
        BadArgument: there is no git, or no repository with a commit at the path that is named.
    """
    directory = session.settings.cwd / (named or ".")
    found = _git("-C", str(directory), "rev-parse", "--show-toplevel", "--verify", "HEAD")
    if found is not None:
        yield Path(found.splitlines()[0])
    elif named is not None:
        raise BadArgument(
            f"{directory} is in no git repository with a commit: name another, or leave --repo out."
        )
    else:
        with TemporaryDirectory(prefix="subagent-demo-") as made:
            _make_repository(Path(made))
            out("There is no repository here, so the demo has a small one of its own.")
            yield Path(made)


def _make_repository(directory: Path) -> None:
    """Make a repository with one commit. Raises BadArgument."""
    (directory / "shop.py").write_text(_SAMPLE, encoding="utf-8")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "Give discounts")):
        if _git("-C", str(directory), *words) is None:
            raise BadArgument(
                f"git could not make a repository in {directory}: name a repository with --repo DIR."
            )


def _git(*words: str) -> str | None:
    """Return what git prints, or None if it fails, or names a directory that no message can name.

    Raises BadArgument if there is no git.
    """
    try:
        program = system_program("git", os.environ.get("PATH"), working_copies(Path.cwd(), os.environ))
        done = subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=20)
    except NoHostProgram as error:
        raise BadArgument(f"git is needed for the demo, and {error.why}: install it.") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout


@contextmanager
def _model(scene: Scene, key: str | None) -> Iterator[dict[str, str]]:
    """Print which model is used, and yield the environment variables that select it."""
    if key:
        out("The model is the real one: ANTHROPIC_API_KEY is set, and this will cost a little.")
        yield {}
        return
    out(
        "The model is scripted, nothing is billed (set ANTHROPIC_API_KEY for the real one); all else is real."
    )
    with Simulator(load_script(scene.script)) as simulator:  # on this machine alone
        model = {"ANTHROPIC_BASE_URL": simulator.base_url, "ANTHROPIC_API_KEY": "scripted"}
        yield {**model, "SUBAGENT_LAUNCHER": "local"}


async def _delegate(
    service: Service, server: StdioServerParameters, scene: Scene, repository: Path
) -> dict[str, Any]:
    """Start the agent, answer its questions and return the last view; print its log as it grows."""
    async with Client(stdio_client(server, errlog=sys.stderr)) as client:  # its default is that of the import
        tools = await client.list_tools()
        _tell(f"parent sees the tools {', '.join(tool.name for tool in tools.tools)}", "grey")
        parent = DemoParent(client, service, scene)
        view = await parent.call(f"run_{scene.agent}", **scene.arguments, cwd=str(repository))
        if "runId" not in view:
            return view
        parent.run_id = run_id = str(view["runId"])
        following = asyncio.create_task(parent.follow())
        try:
            while not _is_over(view):
                reply: dict[str, str] = {}
                if questions := view.get("messages"):
                    answer = (questions[0].get("options") or ["Decide yourself."])[0]
                    reply = {"messageId": questions[0]["messageId"], "answer": answer}
                tool = "reply_subagent" if reply else "check_status"
                view = await parent.call(tool, runId=run_id, **reply, waitSeconds=_WAIT_SECONDS)
        finally:
            following.cancel()
    return view


def _is_over(view: dict[str, Any]) -> bool:
    return bool(view.get("result")) or "output" in view or "error" in view


def _answer_line(view: dict[str, Any]) -> tuple[str, str]:
    status = view.get("status")
    if questions := view.get("messages"):
        return f"asks: {questions[0]['question']}", "yellow"
    if "error" in view:
        return f"{status}, {view['error']['code']}: {view['error']['message']}", "red"
    if _is_over(view):
        return f"{status}: {usage_line(view.get('withDescendants') or view['usage'])}", "green"
    return f"{status}: run {view['runId']} is a process with a directory of its own", "blue"


def _conclude(session: Session, view: dict[str, Any]) -> None:
    """Print the result, and the commands that come next."""
    if hint := view.get("error", {}).get("hint"):
        out(one_line(f"hint: {hint}"))
    out("")
    result = view.get("output", view.get("result"))
    if isinstance(result, dict):
        for key, value in result.items():
            if isinstance(value, str):
                out(one_line(f"{key}: {value}"))
            else:
                _tell(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    elif result:
        out(escape_lines(head(str(result), _RESULT_LINES)))
    if "runId" not in view:
        return
    run_id = str(view["runId"])
    for line in call_lines(calls_of_flow(session.service.store, run_id), _MOST_CALLS):
        _tell(line, "grey")
    directory = session.service.store.paths.run(run_id).directory
    out(f"\nEverything is in {session.shown(directory)}: {session.command('logs', run_id)} has the log.")
    out(
        "Now yours, once installed: `subagent new NAME` writes an agent, `subagent init CLIENT` registers it."
    )


def _tell(text: str, colour: str | None = None) -> None:
    """Print one line, cut to the width of the screen."""
    line = cut(escape(text.expandtabs(4).replace("\n", " ")), line_width())
    out(line if colour is None else coloured(line, colour))
