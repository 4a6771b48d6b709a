"""A program that speaks the Agent Client Protocol, as recorded from Gemini CLI 0.61.

The last line of its task says what it does.

It keeps its sessions below HOME, and all that it is told in `told.jsonl` of its working directory.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HOME = Path(os.environ["HOME"]) / "sessions"
OPTIONS = [
    {"optionId": "always", "name": "Allow for this session", "kind": "allow_always"},
    {"optionId": "once", "name": "Allow", "kind": "allow_once"},
    {"optionId": "cancel", "name": "Reject", "kind": "reject_once"},
]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


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


class Session:
    """One session with one prompt."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.servers: list[Any] = []

    def update(self, kind: str, /, **facts: Any) -> None:
        send(
            method="session/update",
            params={"sessionId": self.session, "update": {"sessionUpdate": kind, **facts}},
        )

    def say(self, *parts: str) -> None:
        for part in parts:
            self.update("agent_message_chunk", content={"type": "text", "text": part})

    def call(self, number: int) -> dict[str, Any]:
        return {
            "toolCallId": f"run_shell_command__{number}",
            "title": "echo hi",
            "kind": "execute",
            "content": [],
        }

    def prompt(self, text: str) -> dict[str, Any]:
        head, _, rest = text.strip().rpartition("\n")[2].partition(":")
        result: dict[str, Any] = getattr(self, f"do_{head}", self.do_say)(rest.strip())
        return result

    # -- what it does, by the first word of the last line of its task

    def do_say(self, text: str) -> dict[str, Any]:
        self.update("available_commands_update", availableCommands=[])
        self.update("agent_thought_chunk", content={"type": "text", "text": "I think."})
        self.say("Begun.")
        self.update("tool_call", **self.call(0), status="pending", rawInput={"cwd": "/"})
        place = {"toolCallId": self.call(0)["toolCallId"]}
        self.update("tool_call_update", **place, status="in_progress", rawInput={"command": "echo hi"})
        done = [{"type": "content", "content": {"type": "text", "text": "hi"}}]
        self.update("tool_call_update", **{**self.call(0), "content": done}, status="completed")
        self.say(*(text or "Done."))
        return {
            "stopReason": "end_turn",
            "_meta": {"quota": {"token_count": {"input_tokens": 400, "output_tokens": 40}}},
        }

    def do_ask(self, question: str) -> dict[str, Any]:
        self.update("tool_call", **self.call(0), status="in_progress")
        self.update("tool_call_update", **self.call(0), status="completed")
        server = self.servers[0]
        env = {pair["name"]: pair["value"] for pair in server["env"]}
        self.say(f"It is {_answer(server, question, env)}.")
        return {"stopReason": "end_turn"}

    def do_approve(self, title: str) -> dict[str, Any]:
        named = {"claudeCode": {"toolName": "Bash"}}  # Claude Code's adapter names it in this update alone
        self.update("tool_call", **self.call(0), status="pending", _meta=named)
        return self.permitted(
            {"toolCallId": "other", "kind": "other", "title": title} if title else self.call(0)
        )

    def do_approve_by_id(self, _: str) -> dict[str, Any]:
        only_id = {"toolCallId": self.call(0)["toolCallId"]}
        self.update("tool_call", **self.call(0), status="pending")
        self.update("tool_call_update", **only_id, rawInput='{"command": "echo hi"}')
        return self.permitted(only_id)

    def permitted(self, call: dict[str, Any]) -> dict[str, Any]:
        params = {"sessionId": self.session, "options": OPTIONS, "toolCall": call}
        send(id=0, method="session/request_permission", params=params)
        while "outcome" not in (message := hear()).get("result", {}):
            pass
        self.say(json.dumps(message["result"]["outcome"]))
        return {"stopReason": "end_turn"}

    def do_turns(self, count: str) -> dict[str, Any]:
        for number in range(int(count)):
            self.update("tool_call", **self.call(number), status="in_progress")
            self.update("tool_call_update", **self.call(number), status="completed")
        return self.until_cancelled()

    def do_sleep(self, _: str) -> dict[str, Any]:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.update("tool_call", **self.call(0), status="in_progress")
        ended = self.until_cancelled()
        child.kill()
        return ended

    def until_cancelled(self) -> dict[str, Any]:
        while hear().get("method") != "session/cancel":
            pass
        return {"stopReason": "cancelled"}

    def do_parts(self, _: str) -> dict[str, Any]:
        for number, part in ((1, "Be war"), (1, "ned."), (2, "Pain"), (2, "ted.")):
            content = {"type": "text", "text": part}
            self.update("agent_message_chunk", content=content, messageId=f"m{number}")
        return {"stopReason": "end_turn"}

    def do_texts(self, facts: str) -> dict[str, Any]:
        texts, tokens = json.loads(facts)
        self.say(*texts)
        usage = {"inputTokens": tokens, "outputTokens": tokens, "totalTokens": 2 * tokens}
        return {"stopReason": "end_turn", **({"usage": usage} if tokens else {})}

    def do_noted(self, note: str) -> dict[str, Any]:
        self.update("agent_message_chunk", content={"type": "text", "text": "Painted."}, messageId="m1")
        self.say(note)
        usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        return {"stopReason": "end_turn", "usage": usage}

    def do_pay(self, amount: str) -> dict[str, Any]:
        self.say("Paid.")
        self.update("usage_update", used=1, size=2, cost={"currency": "USD", "amount": float(amount)})
        return {"stopReason": "end_turn"}

    def do_spend(self, usage: str) -> dict[str, Any]:
        self.update("tool_call", **self.call(0), status="completed")
        self.say("Done.")
        return {"stopReason": "end_turn", "usage": json.loads(usage)}

    def do_end(self, facts: str) -> dict[str, Any]:
        self.say("Half.")
        result: dict[str, Any] = json.loads(facts)
        return result

    def do_quit(self, _: str) -> dict[str, Any]:
        print("I am lost.", file=sys.stderr, flush=True)
        raise SystemExit(3)

    def do_babble(self, _: str) -> dict[str, Any]:
        print("not a message", flush=True)
        updates: list[Any] = [
            None,
            [],
            {"sessionUpdate": 1},
            {"sessionUpdate": "tool_call", "toolCallId": {}},
            {"sessionUpdate": "tool_call_update", "status": "completed"},
            {"sessionUpdate": "new"},
            {"sessionUpdate": "usage_update", "cost": {"currency": "USD", "amount": "NaN"}},
            {
                "sessionUpdate": "usage_update",
                "used": 1,
                "size": 2,
                "cost": {"currency": "USD", "amount": 5e-324},
            },
        ]
        for update in updates:
            send(method="session/update", params={"sessionId": self.session, "update": update})
        send(id=5, method="fs/read_text_file", params={"path": "/etc/passwd"})
        send(id=6, method="session/request_permission", params={"options": "all", "toolCall": 3})
        self.say("Done.")
        return {"stopReason": "end_turn"}


def main() -> None:
    HOME.mkdir(exist_ok=True)
    session = Session("")
    while True:
        message = hear()
        method, params = message.get("method"), message.get("params", {})
        result: dict[str, Any] = {}
        if method == "initialize":
            result = {
                "protocolVersion": int(os.environ.get("FAKE_VERSION", "1")),
                "agentCapabilities": json.loads(os.environ.get("FAKE_CAPABILITIES", '{"loadSession": true}')),
            }
        elif method == "session/new":
            if os.environ.get("FAKE_LOGIN") == "no":
                send(id=message["id"], error={"code": -32000, "message": "Authentication required"})
                continue
            session = Session(f"session-{os.getpid()}")
            session.servers = params["mcpServers"]
            (HOME / session.session).touch()
            result = {"sessionId": session.session, **json.loads(os.environ.get("FAKE_MODES", "{}"))}
        elif method == "session/load":
            session = Session(params["sessionId"])
            if not (HOME / session.session).exists():
                details = {"details": "Invalid session identifier"}
                send(id=message["id"], error={"code": -32603, "message": "Internal error", "data": details})
                continue
            send(id=message["id"], result={})
            session.say("What was said before.")
            continue
        elif method == "session/prompt":
            result = session.prompt(params["prompt"][0]["text"])
        elif "id" not in message:
            continue
        send(id=message["id"], result=result, error=None)  # some agents write both


main()
