"""A program that carries out a run in a box: what it reaches there, and how it speaks with its parent."""

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run import processes
from tests.helpers.files import write_program
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World, kill

HERE = str(Path(__file__).parent)
CLIENT = f"import json, os, subprocess, sys; sys.path.insert(0, {HERE!r}); from asking_parent import Server"


def program(world: World, code: str, **keys: Any) -> None:
    """Write an agent whose program is this Python code, in a box, with a class `Server` for its questions."""
    script = world.home / "program.py"
    script.write_text(f"{CLIENT}\n{code}", encoding="utf-8")
    keys = {"sandbox": "bwrap", "sandboxRead": [str(script), HERE], **keys}
    world.agent("worker", "", runner="command", command=sys.executable, args=[str(script)], **keys)


def test_it_asks_through_the_relay_by_one_server_after_the_other(world: World) -> None:
    executed = world.home / "executed"
    planted = f"open({str(executed)!r}, 'w')"
    world.environment["PYTHONPATH"] = str(world.work)
    program(
        world,
        f'open("sitecustomize.py", "w").write({planted!r})\n'
        "print(Server().ask('Which colour?')); second = Server(); second.process.stdin.close()\n"
        "print(second.process.wait(), Server().ask('Which shape?'))",
    )
    run_id = world.start()
    for answer in ("blue", "round"):
        world.asking(run_id)
        world.reply(run_id, answer)
        world.until(run_id, lambda meta: meta.pending_questions == 0)
    assert world.completed(run_id) == "blue\n0 round"
    assert not executed.exists(), "a server outside has imported what the program wrote"
    (started,) = world.events(run_id, "run_started")
    assert started["sandbox"].startswith("bwrap (")


def test_it_finds_its_task_its_directory_and_no_key_no_token_no_home_and_no_network(world: World) -> None:
    port = world.play(says("Never.")).base_url.rpartition(":")[2]
    (world.home / "canary.txt").write_text("CANARY", encoding="utf-8")
    program(
        world,
        f"""
import glob, resource, socket
open("made.txt", "w").write(sys.stdin.read())
os.makedirs("new/.git/hooks")
open("new/.git/hooks/pre-commit", "w").write("#!/bin/sh")
open("new/.git/HEAD", "w").write("ref: refs/heads/main")
json.dump({{"n": 1}}, open(os.environ["SUBAGENT_RESULT_FILE"], "w"))
def tried(act):
    try:
        return str(act())
    except OSError as error:
        return error.strerror
print(json.dumps({{
    "environment": " ".join(tried(lambda: open(path).read()) for path in glob.glob("/proc/*/environ")),
    "home": sorted(os.listdir(os.environ["HOME"])),
    "runs": sorted(os.listdir({str(world.runs)!r})),
    "run": sorted(name for place in glob.glob({str(world.runs)!r} + "/*") for name in os.listdir(place)),
    "refused": tried(lambda: open("/usr/x", "w")),
    "made": tried(lambda: open(".mcp.json", "w").write("x")),
    "network": tried(lambda: socket.create_connection(("127.0.0.1", {port}))),
    "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
}}))
""",
        network=False,
        sandboxLimits={"memoryBytes": 1 << 30},
        env={"OWN": "of the agent"},
    )
    run_id = world.start("Do it.")
    found = json.loads(world.completed(run_id))
    assert "OWN=of the agent" in found["environment"]
    assert API_KEY not in found["environment"] and "SUBAGENT_RUN" not in found["environment"]
    assert "canary.txt" not in found["home"] and found["runs"] == [run_id]
    assert found["run"] == ["outputs", "program"]
    assert (found["refused"], found["made"]) == ("Read-only file system", "1")
    assert not (world.work / ".mcp.json").exists(), "what other programs execute is moved away"
    assert (found["network"], found["memory"]) == ("Connection refused", 1 << 30)
    assert (world.work / "made.txt").read_text(encoding="utf-8") == "Do it."
    assert world.result(run_id).output == {"n": 1}
    world.gone(run_id)
    assert sorted(path.name for path in world.work.iterdir()) == ["made.txt", "new"]
    assert any("new/.git" in str(event) for event in world.events(run_id, "warning"))


def test_what_only_a_box_can_keep_is_refused_without_one(world: World) -> None:
    program(world, "open('begun', 'w')", sandbox="auto", network=False)
    code, message = world.failed(world.start())
    assert code == "config" and "network: false" in message and "`sandbox: bwrap`" in message
    fake = write_program(
        world.home / "bwrap", '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    world.environment["SUBAGENT_BWRAP"] = str(fake)
    program(world, "open('begun', 'w')")
    code, message = world.failed(world.start())
    assert code == "config" and message.startswith("sandbox: bwrap cannot be kept: ")
    assert not (world.work / "begun").exists()


HOSTILE = """
import select, time
words = json.load(open(os.environ["SUBAGENT_MCP_CONFIG"]))["mcpServers"]["subagent"]["args"][3:]
inherited = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
mine = {str(os.stat(path).st_ino): path for path in inherited if os.path.exists(path)}
tickets, *lines = [mine[word] for word in words]
class Line:
    def __init__(self):
        self.number = os.read(os.open(tickets, os.O_RDONLY), 1)[0]
        self.up = os.open(lines[2 * self.number], os.O_WRONLY | os.O_NONBLOCK)
        self.down = os.open(lines[2 * self.number + 1], os.O_RDONLY | os.O_NONBLOCK)
        os.write(self.up, b"!")
    def send(self, data):
        while data and select.select([], [self.up], [], 2)[1]:
            data = data[os.write(self.up, data):]
        self.is_full = bool(data)
        return self
    def received(self, seconds):
        readable = select.select([self.down], [], [], seconds)[0]
        return len(os.read(self.down, 1)) if readable else None
    def close(self):
        os.close(self.up)
        os.close(self.down)
for _ in range(5):
    Line().close()
Line().send(os.urandom(1 << 20)).close()
Line().send(b"x" * (20 << 20)).close()
request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode() + b"\\n"
first = [Line().send(request) for _ in range(4)]
print("answered", [each.received(60) for each in first], flush=True)
ticket = os.open(tickets, os.O_RDONLY | os.O_NONBLOCK)
try:
    os.read(ticket, 1)
except BlockingIOError:
    print("waits", flush=True)
os.write(os.open(lines[1], os.O_WRONLY | os.O_NONBLOCK), b"{" * 70_000)
first[0].close()
then = Line()
print("then", then.send(request).received(60), flush=True)
os.write(os.open(lines[0], os.O_WRONLY), b"junk that nobody has asked for")
for each in first[1:]:
    each.send((b" " * 1_000 + request) * 6_000)
full = [each.is_full for each in first[1:]]
for each in first[1:]:
    each.close()
print("full", any(full), flush=True)
print(Server().ask("Which colour?"), flush=True)
kept = Line()
stuffed = os.open(tickets, os.O_WRONLY | os.O_NONBLOCK)
try:
    while os.write(stuffed, b"x" * 4096):
        pass
except BlockingIOError:
    then.close()
time.sleep(3)  # until its ticket would be given out again
print("goes on", kept.send(request).received(20), flush=True)
subprocess.Popen(["sleep", "600"], pass_fds=[kept.up], start_new_session=True)
"""


def test_whatever_it_does_with_its_line_few_are_answered_at_once_and_nothing_is_left(world: World) -> None:
    program(world, HOSTILE)
    run_id = world.start_asking()
    world.reply(run_id, "blue")
    assert world.completed(run_id).splitlines() == [
        "answered [1, 1, 1, 1]",
        "waits",
        "then 1",
        "full True",
        "blue",
        "goes on 1",
    ]
    world.gone(run_id)
    assert "Traceback" not in world.paths(run_id).worker_out.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["agent.py", "agent.py/__main__.py", "fifo"])
def test_whatever_a_run_made_of_its_script_is_executed_in_a_box(world: World, name: str) -> None:
    executed, script = world.home / "executed", world.work / name
    script.parent.mkdir(exist_ok=True)
    code = f"open({str(executed)!r}, 'w'); print('done')"
    if name == "fifo":
        os.mkfifo(script)
        threading.Thread(target=script.write_text, args=(code,), daemon=True).start()
    else:
        script.write_text(code, encoding="utf-8")
    keys = {"command": sys.executable, "args": [script.relative_to(world.work).parts[0]], "sandbox": "auto"}
    world.agent("worker", "", runner="command", **keys)
    assert world.completed(world.start()) == "done"
    assert not executed.exists()


VICTIMS = ("nothing", "box", "program", "relay", "worker", "shim")


def test_whatever_is_killed_of_it_nothing_is_left(world: World) -> None:
    program(world, "Server().ask('How long?')")
    victims = {name: world.start() for name in VICTIMS}
    for name, run_id in victims.items():
        world.asking(run_id)
        worker = world.worker(run_id)
        below = processes.descendants([worker.pid])
        named = [(each, b" ".join(processes.command_of(each.pid))) for each in below]
        words = {"box": b"bwrap", "program": b"program.py", "relay": b"relay.py"}
        if name == "nothing":
            world.stop(run_id)
        elif name in ("worker", "shim"):
            kill(worker if name == "worker" else world.shim(run_id))
        else:
            kill(next(each for each, command in named if words[name] in command))
    for name, run_id in victims.items():
        wait_for(partial(_is_over, world, run_id), BOUND, f"the end, {name} killed")
        world.gone(run_id)


PLANTING = """
import json, os, sys
open(os.path.dirname(sys.argv[0]) + "/../executed", "w").close()
if "--version" in sys.argv:
    sys.exit("9.9.9")
sys.stdin.readline()
kept = os.path.expanduser("~/.claude")
found = sorted(os.listdir(kept))
for number in range(20):
    open(f"{kept}/{number}", "w").close()
if not found:
    os.symlink("/etc", kept + "/link")
    os.mkfifo(kept + "/fifo")
else:
    for name in ("large", "larger"):
        open(kept + "/" + name, "wb").truncate(1 << 29)
        open(kept + "/" + name, "ab").write(b"x")
text = " ".join([str(len(found)), str("--resume" in sys.argv), os.environ["ANTHROPIC_API_KEY"][:6]])
content = [{"type": "text", "text": text}]
end = {"subtype": "success", "is_error": False, "terminal_reason": "completed", "permission_denials": []}
print(json.dumps({"type": "assistant", "message": {"id": "m", "content": content}}))
print(json.dumps({"type": "result", "result": text, **end}), flush=True)
"""


def test_its_state_is_carried_on_in_a_box_without_links_and_within_bounds(world: World) -> None:
    script = write_program(world.work / "claude", f"#!{sys.executable}\n{PLANTING}")
    world.agent("worker", runner="claude", command=str(script), sandbox="bwrap")
    first = world.start()
    assert world.completed(first) == "0 False sk-ant"
    second = world.continued(first, "Go on.")
    assert world.completed(second) == "20 True sk-ant"
    third = world.continued(second, "Go on.")
    code, message = world.failed(third)
    assert code == "config" and "more than" in message and "1024 MiB" in message
    assert not (world.home / "executed").exists(), "it was executed outside of a box"
    script.write_text(script.read_text(encoding="utf-8").replace("if not found", "if True"), encoding="utf-8")
    world.agent("worker", runner="claude", command=str(script), env={"HOME": str(world.work)})
    (world.work / ".claude").mkdir()
    outside = world.continued(first, "Go on.")
    assert world.completed(outside) == "0 False sk-ant", "a session in a box is not one outside"


LOSING = """
import json, os, sys
kept = os.path.expanduser("~/.claude/settings.json")
end = {"type": "result", "terminal_reason": "completed", "permission_denials": []}
if "--resume" in sys.argv:
    os.unlink(kept)
    os.symlink(os.path.dirname(sys.argv[0]) + "/../victim", kept)
    print(json.dumps({**end, "is_error": True, "errors": ["No conversation found"]}), flush=True)
    sys.exit()
if not os.path.lexists(kept):
    open(kept, "w").write("of the run")
content = [{"type": "text", "text": "done"}]
print(json.dumps({"type": "assistant", "message": {"id": "m", "content": content}}))
print(json.dumps({**end, "subtype": "success", "is_error": False, "result": "done"}), flush=True)
"""


def test_links_that_it_made_before_it_lost_its_session_are_not_followed(world: World) -> None:
    script = write_program(world.work / "claude", f"#!{sys.executable}\n{LOSING}")
    world.agent("worker", runner="claude", command=str(script), sandbox="bwrap")
    victim = world.home / "victim"
    victim.write_text("of the user", encoding="utf-8")
    first = world.start()
    assert world.completed(first) == "done"
    assert world.completed(world.continued(first, "Go on.")) == "done"
    assert victim.read_text(encoding="utf-8") == "of the user"


def _is_over(world: World, run_id: str) -> bool:
    return world.look(run_id).live is False
