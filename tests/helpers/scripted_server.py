"""An MCP server over stdio that does what its script says, also what no server should; standard library only.

`python scripted_server.py '{"tools": [...], ...}'`. Keys of the script, all optional:

- `tools`: as `tools/list` gives them, each with `does`: what a call brings. `{"content": [...]}` and other
  keys of a result as they are; `{"exit": 3}`, `{"kill": true}`: the server ends during the call;
  `{"hang": true}`: no answer; `{"error": ...}`: an error of the protocol; `{"env": "NAME"}`: a variable of
  the server; `{"meta": true}`: the `_meta` of the call; `{"count": true}`: how many calls this process has
  had; `{"forks": 9}`: whether it may have so many processes;
  `{"progress": 3}`: three reports, then the text `done`; `{"pings": 9}`: so many, and nothing
  is read or answered after them; `{"cancels": 9}`: so many requests, each taken back at once;
  `{"raw": "..."}`: this result as it is, in Latin-1, which is no UTF-8;
  `{"stderr": "..."}`: a line, and the arguments; `{"networks": true}`: the interfaces;
  `{"keep": "PATH"}`: how many lines a file has after one more; else the arguments.
  A schema of `"missing"` is left out.
- `pageSize`: tools a page; `pagesDoNotEnd`. `stderr`, `stdout`: lines to print first, with variables in them.
- `log`: a message of its log. `exit`: end with this code at once. `silent`: never answer.
- `discover`: `die` or `silent`, as some old servers; `complains`: lines on stderr at a new method.
- `mark`: a file that gets a line at each start.
"""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any


class ScriptedServer:
    """One server at its work."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.calls = 0

    def serve(self) -> None:
        """Answer until the input ends."""
        for line in self.script.get("stderr", []):
            print(os.path.expandvars(line), file=sys.stderr, flush=True)
        for line in self.script.get("stdout", []):
            print(line, flush=True)
        if "mark" in self.script:
            with Path(self.script["mark"]).open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
        if "exit" in self.script:
            sys.exit(self.script["exit"])
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message and "method" in message and not self.script.get("silent"):
                self.answer(message)

    def answer(self, message: dict[str, Any]) -> None:
        """Answer one request."""
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "scripted", "version": "1.0"},
            }
            self.send({"id": message["id"], "result": result})
            if "log" in self.script:
                self.notify("notifications/message", {"level": "warning", "data": self.script["log"]})
        elif method == "tools/list":
            self.send({"id": message["id"], "result": self.page(params.get("cursor"))})
        elif method == "tools/call":
            self.call(message["id"], params)
        elif self.script.get("discover") == "die":
            sys.exit(9)
        elif self.script.get("discover") != "silent":
            for line in self.script.get("complains", []):
                print(line, file=sys.stderr, flush=True)
            self.refuse(message["id"], f"there is no {method}")

    def page(self, cursor: str | None) -> dict[str, Any]:
        """Return one page of the tools."""
        tools = [{"inputSchema": {"type": "object"}, **tool} for tool in self.script.get("tools", [])]
        tools = [
            {key: value for key, value in tool.items() if key != "does" and value != "missing"}
            for tool in tools
        ]
        size = self.script.get("pageSize", len(tools) or 1)
        start = int(cursor or 0)
        page: dict[str, Any] = {"tools": tools[start : start + size]}
        if self.script.get("pagesDoNotEnd"):
            page["nextCursor"] = "0"
        elif start + size < len(tools):
            page["nextCursor"] = str(start + size)
        return page

    def call(self, number: Any, params: dict[str, Any]) -> None:
        """Do what the script says of a tool."""
        self.calls += 1
        does: dict[str, Any] = self.tool(params["name"]).get("does", {})
        if "exit" in does:
            print("going down", file=sys.stderr, flush=True)
            os._exit(does["exit"])
        if does.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if does.get("hang"):
            return
        if "pings" in does:
            for ping in range(does["pings"]):
                self.send({"id": f"{ping:01000}", "method": "ping"})
            signal.pause()
        for request in range(does.get("cancels", 0)):
            self.send({"id": f"{request:01000}", "method": "ping"})
            self.send({"method": "notifications/cancelled", "params": {"requestId": f"{request:01000}"}})
        if "error" in does:
            self.refuse(number, does["error"])
            return
        if "raw" in does:
            answer = f'{{"jsonrpc": "2.0", "id": {json.dumps(number)}, "result": {does["raw"]}}}\n'
            os.write(1, answer.encode("latin-1"))
            return
        self.send({"id": number, "result": self.result(does, params)})

    def tool(self, name: str) -> dict[str, Any]:
        """Return what the script says of a tool."""
        return next((tool for tool in self.script["tools"] if tool["name"] == name), {})

    def result(self, does: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a call."""
        for step in range(does.get("progress", 0)):
            token = params.get("_meta", {}).get("progressToken")
            report = {"progressToken": token, "progress": step + 1}
            self.notify("notifications/progress", report)
        if "content" in does or "structuredContent" in does:
            return {"content": [], **does}
        if "env" in does:
            return self.text(os.environ.get(does["env"], "(unset)"))
        if does.get("meta"):
            return self.text(json.dumps(params.get("_meta")))
        if "networks" in does:
            return self.text(",".join(sorted(name for _, name in socket.if_nameindex())))
        if "forks" in does:
            return self.text(_forked(does["forks"]))
        if "keep" in does:
            return self.text(_kept(Path(does["keep"]).expanduser()))
        if "stderr" in does:
            print(os.path.expandvars(does["stderr"]), file=sys.stderr, flush=True)
        if "count" in does:
            return self.text(str(self.calls))
        return self.text("done" if "progress" in does else json.dumps(params.get("arguments")))

    @staticmethod
    def text(text: str) -> dict[str, Any]:
        """Return a result of one text."""
        return {"content": [{"type": "text", "text": text}]}

    def refuse(self, number: Any, why: Any) -> None:
        """Answer with an error of the protocol; what is no text is the error as it is."""
        error = {"code": -32601, "message": why} if isinstance(why, str) else why
        self.send({"id": number, "error": error})

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Say something unasked."""
        self.send({"method": method, "params": params})

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        with _WRITING:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()


def _kept(place: Path) -> str:
    try:
        with place.open("a", encoding="utf-8") as file:
            file.write("once\n")
    except OSError as error:
        return str(error)
    return str(len(place.read_text(encoding="utf-8").splitlines()))


def _forked(most: int) -> str:
    made: list[int] = []
    try:
        while len(made) < most:
            if (pid := os.fork()) == 0:
                signal.pause()
            made.append(pid)
    except OSError as error:
        return error.strerror or ""
    finally:
        for pid in made:
            os.kill(pid, signal.SIGKILL)
    return "never bounded"


_WRITING = threading.Lock()

if __name__ == "__main__":
    ScriptedServer(json.loads(sys.argv[1])).serve()
