"""Runs as a log of Inspect (https://inspect.aisi.org.uk), made of their journals: a sample for each run."""

from collections.abc import Iterable
from typing import Any

from subagent_server import __version__
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.domain.times import timestamp
from subagent_server.host import journal
from subagent_server.store.runs import RunStore

_STATUS = {"completed": "success", "failed": "error", "stopped": "cancelled"}

Record = dict[str, Any]


def inspect_log(store: RunStore, metas: Iterable[RunMeta]) -> Record:
    """Return the log of runs, of which the first gives the log its name and its status."""
    runs = list(metas)
    samples = [_sample(store, meta) for meta in runs]
    first, whole = runs[0], samples[0]
    model = next(iter(whole["model_usage"]))
    log = {
        "version": 2,
        "status": _STATUS.get(first.status.value, "started"),
        "eval": {
            "eval_id": first.run_id,
            "run_id": first.root_run_id,
            "created": timestamp(first.created_at),
            "task": first.agent_name,
            "task_id": first.run_id,
            "dataset": {"name": first.agent_name, "samples": len(samples)},
            "model": model,
            "config": {},
            "packages": {"subagent-server": __version__},
        },
        "stats": {
            "started_at": whole["started_at"],
            "completed_at": whole["completed_at"] or "",
            "model_usage": whole["model_usage"],
        },
        "samples": samples,
    }
    if "error" in whole:
        log["error"] = whole["error"]
    return log


def _sample(store: RunStore, meta: RunMeta) -> Record:
    events = list(journal.records(store.paths.run(meta.run_id).events))
    request = store.read_request(meta.run_id)
    model = str(next((event["model"] for event in events if event.get("model")), "none/unknown"))
    messages = [{"role": "user", "content": request.prompt}, *_messages(events, model)]
    usage, ended = _usage(meta.usage), meta.completed_at or meta.stopped_at
    said = [message for message in messages if message["role"] == "assistant"]
    sample: Record = {
        "id": meta.run_id,
        "epoch": 1,
        "input": request.prompt,
        "target": "",
        "messages": messages,
        "output": {
            "model": model,
            "choices": [{"message": message, "stop_reason": "stop"} for message in said[-1:]],
            "usage": usage,
        },
        "metadata": {
            "agent": meta.agent_name,
            "status": meta.status.value,
            "parent_run_id": meta.parent_run_id,
            "summary": meta.summary,
            "warnings": [event.get("message") for event in events if event.get("type") == "warning"],
        },
        "model_usage": {model: usage},
        "started_at": timestamp(meta.started_at or meta.created_at),
        "completed_at": None if ended is None else timestamp(ended),
    }
    if meta.error is not None:
        sentence = f"{meta.error.code}: {meta.error.message}"
        sample["error"] = {"message": sentence, "traceback": "", "traceback_ansi": ""}
    return sample


def _messages(events: list[Record], model: str) -> list[Record]:
    """Return the conversation after the prompt: one message of the agent for each of its turns."""
    messages: list[Record] = []
    turn: Record | None = None
    for event in events:
        kind, text = event.get("type"), str(event.get("text", ""))
        if kind == "turn":
            turn = None
        elif kind in ("thought", "text", "tool_call"):
            if turn is None:
                turn = {"role": "assistant", "content": [], "tool_calls": [], "model": model}
                messages.append(turn)
            if kind == "thought":
                turn["content"].append({"type": "reasoning", "reasoning": text})
            elif kind == "text":
                turn["content"].append({"type": "text", "text": text})
            else:
                turn["tool_calls"].append(_call(event))
        elif kind == "tool_result":
            message: Record = {"role": "tool", "content": text, "tool_call_id": str(event.get("toolCallId"))}
            message["function"] = str(event.get("toolName"))
            if event.get("isError"):
                message["error"] = {"type": "unknown", "message": text}
            messages.append(message)
        elif kind == "reply":
            messages.append({"role": "user", "content": str(event.get("answer", ""))})
    return messages


def _call(event: Record) -> Record:
    arguments = event.get("arguments")
    return {
        "id": str(event.get("toolCallId")),
        "function": str(event.get("toolName")),
        "arguments": arguments if isinstance(arguments, dict) else {"arguments": arguments},
        "type": "function",
    }


def _usage(usage: Usage) -> Record:
    return {
        "input_tokens": usage.input_tokens or 0,
        "output_tokens": usage.output_tokens or 0,
        "total_tokens": usage.tokens or 0,
        "input_tokens_cache_write": usage.cache_write_tokens,
        "input_tokens_cache_read": usage.cache_read_tokens,
        "total_cost": None if usage.cost_usd is None else float(usage.cost_usd),
    }
