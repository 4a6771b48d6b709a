"""What a model sees of the tools: names, descriptions, arguments. Short: every parent pays for them."""

from collections.abc import Mapping
from typing import Any

from subagent_server.domain.limits import (
    MAX_ANSWER_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_SUMMARY_CHARACTERS,
)
from subagent_server.domain.states import Status

Schema = dict[str, Any]

MAX_WAIT_SECONDS = 86_400


def arguments(required: list[str], **properties: Schema) -> Schema:
    """Return the input schema of a tool."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def text(description: str = "", **more: Any) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def bounded(kind: str, least: int, most: int, default: int) -> Schema:
    """Return the schema of a number. Its bounds are told in words too: some clients pass on nothing else."""
    bounds = {"minimum": least, "maximum": most, "default": default}
    return {"type": kind, "description": f"Default {default}, at most {most}", **bounds}


def wait(default: int) -> Schema:
    """Return the schema of `waitSeconds`."""
    return bounded("number", 0, MAX_WAIT_SECONDS, default)


RUN_ID = text()
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
SUMMARY = text(maxLength=MAX_SUMMARY_CHARACTERS)
OPTIONS: Schema = {
    "type": "array",
    "items": {"type": "string", "maxLength": MAX_OPTION_CHARACTERS},
    "maxItems": MAX_OPTIONS,
}

RUN_AGENT_CHECKED = arguments(
    ["prompt"], prompt=text(), inputs=TEXTS, waitSeconds=wait(0), label=text(), cwd=text()
)
"""What a call of `run_<agent>` has to fit."""

RUN_AGENT: Schema = {
    "type": "object",
    "properties": {
        "prompt": text("All it sees"),
        "inputs": TEXTS | {"description": "Files"},
        "waitSeconds": {"type": "number"},
        "label": text(),
        "cwd": text(),
    },
    "required": ["prompt"],
}
"""The same as a model sees it, once for each agent: at most 350 bytes with the name (SPEC section 5)."""

INPUTS: Mapping[str, Schema] = {
    "check_status": arguments(
        ["runId"],
        runId=RUN_ID,
        messageId=text("Only for the asker: its question; takes the answer"),
        waitSeconds=wait(0),
    ),
    "wait_for_runs": arguments(
        [],
        runIds=TEXTS,
        waitFor={"enum": ["any", "all"], "default": "any"},
        waitSeconds=wait(45),
        cursor=text("From the last answer: reports only what is new"),
    ),
    "list_runs": arguments(
        [],
        status={"enum": [status.value for status in Status]},
        agent=text(),
        limit=bounded("integer", 1, 500, 20),
    ),
    "get_logs": arguments(
        ["runId"],
        runId=RUN_ID,
        stream={"enum": ["log", "events", "result", "payload"], "default": "log"},
        cursor=text("From the last page"),
        lines=bounded("integer", 1, 1000, 50),
    ),
    "reply_subagent": arguments(
        ["runId", "answer"],
        runId=RUN_ID,
        messageId=text("Needed where several are open"),
        answer=text(maxLength=MAX_ANSWER_CHARACTERS),
        waitSeconds=wait(0),
    ),
    "stop_run": arguments(["runId"], runId=RUN_ID, reason=SUMMARY),
    "continue_run": arguments(
        ["runId"],
        runId=RUN_ID,
        prompt=text("What to do next; without it the run goes on where it was cut"),
        inputs=TEXTS,
        storedAgent={"type": "boolean", "description": "If its file is gone: as the run had it"},
        waitSeconds=wait(0),
    ),
    "ask_parent": arguments(
        ["question"],
        runId=RUN_ID,
        question=text(maxLength=MAX_QUESTION_CHARACTERS),
        options=OPTIONS,
        waitSeconds=wait(45),
    ),
    "update_status": arguments(
        ["status"],
        runId=RUN_ID,
        status={"enum": ["running", "completed", "failed"]},
        summary=SUMMARY,
        payload=text("The full result, stored compressed"),
    ),
}

DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "check_status": (
        "Check a run",
        "State of a run: progress, open questions, result or error, and what to call next. "
        "waitSeconds waits until it ends or asks.",
    ),
    "wait_for_runs": (
        "Wait for runs",
        "Wait for several runs in one call, by default all live ones and those whose end you were not shown. "
        "Returns as soon as one ends or asks "
        "(waitFor all: when all have ended, or one asks).",
    ),
    "list_runs": ("List runs", "Runs, newest first; those that need an answer come first."),
    "get_logs": (
        "Read a run's log",
        "A page of a run's log (its last lines first), events, whole result or payload.",
    ),
    "reply_subagent": (
        "Answer a subagent",
        "Answer a run's question. waitSeconds then waits for what comes next.",
    ),
    "stop_run": ("Stop a run", "End a run and all it started. A run that has ended stays as it is."),
    "continue_run": (
        "Continue a run",
        "Carry a run that has ended on, with its whole conversation, as a new run.",
    ),
    "ask_parent": (
        "Ask the parent",
        "For subagents: ask the parent one question and wait for the answer.",
    ),
    "update_status": (
        "Report status",
        "For subagents: say how far the work is, or end it as completed or failed with a summary.",
    ),
}

PARENT_TOOLS = (
    "check_status",
    "wait_for_runs",
    "list_runs",
    "get_logs",
    "reply_subagent",
    "stop_run",
    "continue_run",
)
CHILD_TOOLS = ("ask_parent", "update_status")
