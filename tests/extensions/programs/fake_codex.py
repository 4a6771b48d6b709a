"""A program that speaks as Codex's app-server does, as recorded from 0.169.

The last line of its task says what it does.

It keeps its threads in CODEX_HOME, and all that it is told in `told.jsonl` of its working directory.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

HOME = Path(os.environ["CODEX_HOME"])
USAGE = {"inputTokens": 100, "cachedInputTokens": 40, "cacheWriteInputTokens": 0, "outputTokens": 10}


def send(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def _answer(server: dict[str, Any], question: str, env: dict[str, str]) -> str:
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.extensions.programs.asking_parent import Server

    return Server([server["command"], *server["args"]], env).ask(question)


def hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    with Path("told.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)
    message: dict[str, Any] = json.loads(line)
    return message


class Thread:
    """One thread with one turn."""

    def __init__(self, thread: str, calls: int) -> None:
        self.thread, self.turn, self.calls = thread, "turn-1", calls

    def tell(self, method: str, /, **params: Any) -> None:
        send(method=method, params={"threadId": self.thread, "turnId": self.turn, **params})

    def item(self, kind: str, /, **facts: Any) -> None:
        self.tell(f"item/{kind}", item=facts)

    def start_servers(self, params: dict[str, Any]) -> None:
        self.servers = params["config"]["mcp_servers"]
        for name in self.servers:
            for status in ("starting", "ready"):
                self.tell("mcpServer/startupStatus/updated", name=name, status=status)

    def model_call(self) -> None:
        self.calls += 1
        self.tell_usage()

    def tell_usage(self) -> None:
        total = {name: count * self.calls for name, count in USAGE.items()}
        self.tell("thread/tokenUsage/updated", tokenUsage={"total": total, "last": USAGE})

    def command(self, number: int, **end: Any) -> None:
        facts = {"type": "commandExecution", "id": f"call_{number}", "command": "echo hi", "cwd": "/work"}
        self.item("started", **facts, status="inProgress")
        self.item(
            "completed", **facts, **{"status": "completed", "exitCode": 0, "aggregatedOutput": "hi\n", **end}
        )

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        send(id=77, method=method, params={"threadId": self.thread, "itemId": "call_0", **params})
        while (message := hear()).get("id") != 77 or "method" in message:
            self.obey(message)
        return message

    def obey(self, message: dict[str, Any]) -> None:
        if message.get("method") == "turn/interrupt":
            send(id=message["id"], result={})
            self.end("interrupted")

    def end(self, status: str = "completed", **facts: Any) -> NoReturn:
        (HOME / self.thread).write_text(str(self.calls), encoding="utf-8")
        send(
            method="turn/completed",
            params={"threadId": self.thread, "turn": {"id": self.turn, "status": status, **facts}},
        )
        while True:
            hear()

    def say(self, text: str) -> None:
        self.item("completed", type="agentMessage", id="msg", text=text)
        self.model_call()

    def work(self, prompt: str) -> NoReturn:
        head, _, rest = prompt.strip().rpartition("\n")[2].partition(":")
        getattr(self, f"do_{head}", self.do_say)(rest.strip())
        self.end()

    # -- what it does, by the first word of the last line of its task

    def do_say(self, text: str) -> None:
        self.item("completed", type="reasoning", id="r", summary=["I think."], content=[])
        self.model_call()
        self.command(0)
        self.say(text or "Done.")

    def do_ask(self, question: str) -> None:
        self.model_call()
        self.command(0)
        self.say(f"It is {_answer(self.servers['subagent'], question, {})}.")

    def do_approve(self, decision: str) -> None:
        self.model_call()
        facts = {"type": "commandExecution", "id": "call_0", "command": "touch /x", "cwd": "/"}
        self.item("started", **facts, status="inProgress")
        answer = self.ask(
            "item/commandExecution/requestApproval", command="touch /x", cwd="/", reason="need it"
        )
        self.item(
            "completed",
            **facts,
            status="declined" if answer["result"]["decision"] == "decline" else "completed",
        )
        self.say(json.dumps(answer["result"]))

    def do_widen(self, _: str) -> None:
        results = []
        for root in (None, None, "/a", "/b"):
            answer = self.ask("item/fileChange/requestApproval", grantRoot=root)
            results.append(answer["result"]["decision"])
        for wanted in ({"network": True}, {"fileSystem": {"write": ["/"]}}):
            answer = self.ask("item/permissions/requestApproval", permissions=wanted)
            results.append(answer["result"]["permissions"])
        self.say(json.dumps(results))

    def do_turns(self, count: str) -> None:
        for number in range(int(count)):
            self.command(number)
            for _ in range(2):  # an interrupt may cross the first
                self.ask("nothing/that/is/known")
            self.model_call()  # told of once its calls have ended

    def do_sleep(self, _: str) -> None:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.item(
            "started", type="commandExecution", id="call_0", command="sleep 600", cwd="/", status="inProgress"
        )
        while True:
            message = hear()
            if message.get("method") == "turn/interrupt":
                child.kill()
            self.obey(message)

    def do_quit(self, _: str) -> None:
        self.say("Half.")
        raise SystemExit(3)

    def do_retry(self, _: str) -> None:
        self.tell(
            "error", error={"message": "Reconnecting... 1/5", "additionalDetails": "refused"}, willRetry=True
        )
        while True:
            hear()

    def do_end(self, facts: str) -> None:
        self.end(**json.loads(facts))

    def do_refused(self, _: str) -> None:
        self.tell(
            "rawResponseItem/completed",
            item={
                "type": "function_call",
                "call_id": "c",
                "name": "exec_command",
                "arguments": '{"cmd": "id"}',
            },
        )
        self.tell(
            "rawResponseItem/completed",
            item={"type": "function_call_output", "call_id": "c", "output": "bwrap: no"},
        )
        self.say("Done.")

    def do_server(self, _: str) -> None:
        self.tell("mcpServer/startupStatus/updated", name="paint", status="failed", error="No such file")

    def do_babble(self, _: str) -> None:
        print("not a message\n[]\n" + "[" * 5000, flush=True)
        send(id=999, result={})
        send(method="turn/completed", params=[])
        odd: list[dict[str, Any]] = [
            *({"item": None}, {"item": {"type": 3, "id": []}}, {"item": {"type": {}}}),
            *({"tokenUsage": "much"}, {"error": 1}),
            *({"item": {"type": kind, "status": [], "id": kind}} for kind in ("webSearch", "apply_patch")),
        ]
        for params in odd:
            for method in (
                "item/started",
                "item/completed",
                "rawResponseItem/completed",
                "error",
                "new/thing",
                "thread/tokenUsage/updated",
            ):
                send(method=method, params={"threadId": self.thread, **params})
        send(method="turn/completed", params={"threadId": "another", "turn": {"status": "completed"}})
        for number in range(200):
            send(id=f"r{number}", method="item/commandExecution/requestApproval", params={"command": "rm"})
        self.say("Done.")


def main() -> None:
    if "--version" in sys.argv:
        sys.exit(print("codex-cli 0.169.0"))
    thread = Thread("", 0)
    while True:
        message = hear()
        method, params = message.get("method"), message.get("params", {})
        if method == "initialize":
            send(id=message["id"], result={"userAgent": "codex/0.169.0", "codexHome": str(HOME)})
        elif method == "account/read":
            logged_in = os.environ.get("FAKE_LOGIN", "yes") == "yes"
            send(
                id=message["id"],
                result={"account": {} if logged_in else None, "requiresOpenaiAuth": not logged_in},
            )
        elif method == "thread/start":
            thread = Thread(f"thread-{os.getpid()}", 0)
            send(id=message["id"], result={"thread": {"id": thread.thread}})
            thread.start_servers(params)
        elif method == "thread/resume":
            stored = HOME / params["threadId"]
            if not stored.exists():
                send(id=message["id"], error={"code": -32600, "message": "no rollout found"})
                continue
            thread = Thread(params["threadId"], int(stored.read_text(encoding="utf-8")))
            send(id=message["id"], result={"thread": {"id": thread.thread}})
            thread.turn = "turn-0"
            thread.tell_usage()
            thread.turn = "turn-1"
            thread.start_servers(params)
        elif method == "turn/start":
            (HOME / thread.thread).write_text(str(thread.calls), encoding="utf-8")
            send(id=message["id"], result={"turn": {"id": thread.turn}})
            thread.work(params["input"][0]["text"])


main()
