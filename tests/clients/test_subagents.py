"""The real Codex and Gemini CLI carry out runs, with scripted models: asked, stopped, killed, continued."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from subagent_server.host import process_scan, processes
from tests.clients.codex import SETTINGS
from tests.clients.driver import BOUND, edit_json
from tests.clients.gemini_api import gemini_app
from tests.clients.gemini_cli import SETTINGS as GEMINI_SETTINGS
from tests.clients.installed import Installed
from tests.clients.loopback import serving
from tests.clients.parent_model import Call, Heard, ParentModel, Plan, Say, call
from tests.clients.responses_api import responses_app
from tests.clients.scene import AGENT, AGENT_PROMPT, Scene
from tests.helpers import turns
from tests.helpers.wait import wait_for
from tests.helpers.world import World

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class Program:
    """A program that carries out the runs of the agent `worker`."""

    def __init__(self, scene: Scene, installed: Installed, name: str) -> None:
        self.world: World = scene.world
        self.name = name
        self._modules = installed.modules
        self._words = installed.codex if name == "codex" else installed.gemini

    def shell(self, command: str, *, outside: bool = False) -> Call:
        """Return a call of its shell; `outside` asks for more than it may by itself."""
        if self.name == "gemini":
            return Call("run_shell_command", {"command": command}, own=True)
        more = {"sandbox_permissions": "require_escalated", "justification": "x"} if outside else {}
        return Call("exec_command", {"cmd": command, **more}, own=True)

    def in_a_box(self) -> dict[str, Any]:
        """Return the keys with which it works in a box, and may use its shell there."""
        shown = [
            self._modules,
            self.world.home / self.name,
            self.world.home / f".{self.name}" / self._settings,
        ]
        # Codex has no list of tools, and asks for nothing in a box
        tools = {"tools": ["Bash"]} if self.name == "gemini" else {}
        return {"sandbox": "bwrap", "sandboxRead": [*map(str, shown)], **tools}

    @property
    def _settings(self) -> str:
        return "settings.json" if self.name == "gemini" else "config.toml"

    @contextmanager
    def playing(self, plan: Plan, agent: str = "worker", **keys: Any) -> Iterator[None]:
        """Write the agent, and let its model follow a plan."""
        home = self.world.home
        wrapper = home / self.name
        wrapper.write_text("#!/bin/sh\nexec " + " ".join(self._words) + ' "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
        model = ParentModel(plan)
        with serving(self._app(model)) as url:
            words: dict[str, Any] = {"runner": self.name, "command": str(wrapper)}
            if self.name == "gemini":  # without a model it asks another one which to take
                words["model"] = "gemini-2.5-flash"
            self.world.agent(agent, env=self._configure(url), **words, **keys)
            yield
        assert model.failure is None, model.failure

    def _app(self, model: ParentModel) -> Starlette:
        if self.name == "gemini":
            return gemini_app(model, "mcp_subagent_")
        return responses_app(model, "mcp__subagent")

    def _configure(self, url: str) -> dict[str, str]:
        home = self.world.home
        if self.name == "gemini":
            edit_json(home / ".gemini" / "settings.json", **GEMINI_SETTINGS)
            return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "scripted"}
        state, temporary = home / ".codex", home / "tmp"
        for directory in (state, temporary):
            directory.mkdir(exist_ok=True)
        settings = SETTINGS.replace("http://127.0.0.1:1/v1", f"{url}/v1")
        (state / "config.toml").write_text(settings, encoding="utf-8")
        # its sandbox does not start from below the temporary directory, where the world is
        return {"CODEX_HOME": str(state), "TMPDIR": str(temporary), "LOOPBACK_KEY": "scripted"}


@pytest.fixture(params=["codex", "gemini"])
def program(request: pytest.FixtureRequest, scene: Scene, clients: Installed) -> Program:
    """Each program, one after the other."""
    return Program(scene, clients, request.param)


def test_it_works_for_the_built_in_loop_asks_and_gives_its_result(program: Program, scene: Scene) -> None:
    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return program.shell("echo hi")
        if heard.calls == 1:
            return call("ask_parent", question="Which colour?", options=["red", "blue"])
        return Say(f"In {heard.answer()['answer']}.")

    world = program.world
    world.agent(AGENT, AGENT_PROMPT, agents=["worker"])
    reply = turns.call("reply_subagent", runId="${run}", answer="blue", waitSeconds=60)
    scene.plays(
        turns.call("run_worker", prompt="Paint it.", waitSeconds=60),
        {**reply, "capture": {"run": '"runId": ?"([^"]+)"'}},
        turns.says("It is ${colour}.", capture={"colour": "In (red|blue)"}),
    )
    with program.playing(plan):
        run_id = world.start(agent=AGENT)
        assert world.completed(run_id) == "It is blue."
    (child,) = [name for name in scene.run_ids() if name != run_id]
    world.gone(child)
    kinds = {event["type"] for event in world.events(child)}
    assert {"run_started", "tool_call", "tool_result", "text", "usage", "run_ended"} <= kinds
    assert (world.meta(child).usage.output_tokens or 0) > 0 and world.meta(child).usage.cost_usd is None


@pytest.mark.parametrize(("above", "below"), [("codex", "gemini"), ("gemini", "codex")])
def test_one_program_has_another_do_a_part_of_its_work(
    scene: Scene, clients: Installed, above: str, below: str
) -> None:
    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return call("run_hand", prompt="Paint the door.", waitSeconds=60)
        return Say(f"The hand says: {heard.answer()['result']}")

    world = scene.world
    lead, hand = (Program(scene, clients, name) for name in (above, below))
    with hand.playing(lambda heard: Say("The door is blue."), "hand"):
        with lead.playing(plan, agents=["hand"]):
            run_id = world.start()
            assert world.completed(run_id) == "The hand says: The door is blue."
        (child,) = [name for name in scene.run_ids() if name != run_id]
        assert world.meta(child).parent_run_id == run_id
        world.gone(child)


@pytest.mark.parametrize("answer", ["once", "no"])
def test_what_it_may_not_do_by_itself_is_a_question(program: Program, answer: str) -> None:
    def plan(heard: Heard) -> Call | Say:
        return program.shell(f"touch {mark}", outside=True) if heard.calls == 0 else Say("Done.")

    world = program.world
    mark = world.work / "mark"
    with program.playing(plan):
        run_id = world.start()
        assert "touch" in world.asking(run_id).messages[0].question_content
        world.reply(run_id, answer)
        assert world.completed(run_id) == "Done."
    assert mark.exists() == (answer == "once")


def test_stopped_in_a_tool_call_it_leaves_nothing_and_goes_on_in_a_continuation(program: Program) -> None:
    def plan(heard: Heard) -> Call | Say:
        return program.shell("sleep 601", outside=True) if heard.calls == 0 else Say("Again.")

    world = program.world
    with program.playing(plan):
        run_id = world.start()
        world.asking(run_id)
        world.reply(run_id, "once")
        wait_for(lambda: _sleeps(world), BOUND, "the command")
        world.stop(run_id)
        world.gone(run_id)
        assert not _sleeps(world)
        done = world.cli("continue", run_id, "Go on.", "--detach")
        assert done.returncode == 0, done.stderr
        assert world.completed(done.stdout.strip()) == "Again."


@pytest.mark.parametrize("victim", ["program", "worker", "shim"])
def test_after_kill_9_the_run_says_so_and_goes_on_in_a_continuation(program: Program, victim: str) -> None:
    def plan(heard: Heard) -> Call | Say:
        return Say("Again.") if is_killed else program.shell("sleep 602", outside=True)

    world, is_killed = program.world, list[bool]()
    with program.playing(plan):
        run_id = world.start()
        world.asking(run_id)
        world.reply(run_id, "once")
        wait_for(lambda: _sleeps(world), BOUND, "the command")
        worker = world.worker(run_id)
        program_itself = process_scan.descendants([worker.pid])[0]
        targets = {"worker": worker, "shim": world.shim(run_id), "program": program_itself}
        is_killed.append(True)  # the program's own record may lack the call
        processes.send_signal(targets[victim], 9)
        wait_for(lambda: world.look(run_id).meta.status.is_terminal, BOUND, "the end of the run")
        assert (
            world.failed(run_id)[0] == {"worker": "crashed", "shim": "lost", "program": "agent_error"}[victim]
        )
        world.gone(run_id)
        done = world.cli("continue", run_id, "Go on.", "--detach")
        assert done.returncode == 0, done.stderr
        assert world.completed(done.stdout.strip()) == "Again."


def test_after_kill_9_of_the_server_it_asks_by_the_model_is_told_and_the_run_goes_on(
    program: Program,
) -> None:
    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return program.shell(f"until [ -e {gate} ]; do sleep 0.2; done", outside=True)
        return call("ask_parent", question="Still there?") if heard.calls == 1 else Say("I could not ask.")

    world = program.world
    gate = world.work / "gate"
    with program.playing(plan):
        run_id = world.start()
        world.asking(run_id)
        world.reply(run_id, "once")
        below = process_scan.descendants([world.worker(run_id).pid])
        servers = [
            each for each in below if b"--role\0child" in Path(f"/proc/{each.pid}/cmdline").read_bytes()
        ]
        for server in servers:
            processes.send_signal(server, 9)
        gate.touch()
        assert servers and world.completed(run_id) == "I could not ask."
        asked = [event for event in world.events(run_id, "tool_result") if event["isError"]]
        assert asked, "the journal says that the question could not be asked"
        done = world.cli("continue", run_id, "Go on.", "--detach")
        assert world.completed(done.stdout.strip()) == "I could not ask."


def test_its_structured_result_is_checked(program: Program) -> None:
    with program.playing(lambda heard: Say(json.dumps({"n": 7})), outputSchema=SCHEMA):
        run_id = program.world.start()
        program.world.completed(run_id)
        assert program.world.result(run_id).output == {"n": 7}


def test_in_a_box_it_works_asks_and_its_session_is_carried_on(program: Program) -> None:
    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return program.shell(f"touch {world.work}/made; touch {world.home}/escaped")
        if heard.calls == 1:
            return call("ask_parent", question="Which colour?", options=["red", "blue"])
        return Say(f"In {heard.answer()['answer']}.")

    world = program.world
    with program.playing(plan, **program.in_a_box()):
        run_id = world.start()
        assert world.asking(run_id).messages[0].question_content == "Which colour?"
        world.reply(run_id, "blue")
        assert world.completed(run_id) == "In blue."
        world.gone(run_id)
        done = world.cli("continue", run_id, "Which one was it?", "--detach")
        assert done.returncode == 0, done.stderr
        assert world.completed(done.stdout.strip()) == "In blue."
    assert (world.work / "made").exists() and not (world.home / "escaped").exists()


def _sleeps(world: World) -> bool:
    """Whether a long command of the world is at work."""
    for identity in process_scan.marked(f"SUBAGENT_RUNS={world.runs}"):
        with suppress(OSError):
            if Path(f"/proc/{identity.pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                return True
    return False
