"""A run for elsewhere: as an archive, as a log of Inspect, or as spans of OpenTelemetry.

What is secret to this process is masked again.

Tested in `tests/cli/test_export.py`.
"""

import hashlib
import io
import json
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from subagent_server import __version__
from subagent_server.run import durable
from subagent_server.run.errors import SubagentError
from subagent_server.run.files import Entry
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import RunMeta, RunRequest, Usage
from subagent_server.run.secrets import Masker
from subagent_server.run.states import Status, cut, known_sum, timestamp
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.inputs import masker_at_door
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service

MAX_FILE_BYTES = 64 << 20
"""A larger file of a run is left out, and reported."""
MAX_FILES = 2_000
"""Of one run; the rest is left out, and reported."""
_DEEPEST = 3


def export(service: Service, run_ids: Iterable[str], file: BinaryIO, caller: Caller = USER) -> list[str]:
    """Write runs into a compressed tar archive, a folder each, and return sentences on what was left out.

    Locks, marks and pipes stay behind, and so does what is no plain file of the run.

    Raises:
        UnknownRun, UnreadableMeta, NotAllowed: a run cannot be opened.
        OSError: the archive cannot be written.
    """
    left_out: list[str] = []
    with tarfile.open(fileobj=file, mode="w|gz", format=tarfile.PAX_FORMAT) as archive:
        for run_id in run_ids:
            meta = observe(service.store, run_id, caller).meta
            masker = masker_at_door(service, run_id)
            run = service.store.paths.run(run_id)
            for number, entry in enumerate(_files(run)):
                name = f"{run_id}/{entry.path.relative_to(run.directory)}"
                if number >= MAX_FILES:
                    left_out.append(f"Run {run_id} has more than {MAX_FILES:,} files: the rest is left out.")
                    break
                try:
                    content = _masked(masker, entry.read(MAX_FILE_BYTES))
                except FileNotFoundError:
                    continue  # it has just been removed
                except OSError as error:
                    left_out.append(f"{name} is left out: {error.strerror}.")
                    continue
                _add(archive, name, content, meta.created_at.timestamp())
    return left_out


def _files(run: RunPaths) -> Iterator[Entry]:
    """Yield the files of a run that a reader can use."""
    single = (run.request, run.meta, run.result, run.payload, run.events, run.log, run.transcript)
    more = (run.worktree, run.shim, run.exit, run.worker_out)
    yield from (entry for entry in (*single, *more) if entry.exists())
    for folder in (run.inputs, run.outputs, run.server_logs, run.code):
        yield from folder.files_below(_DEEPEST)


def _masked(masker: Masker, content: bytes) -> bytes:
    """Return a text without secrets, also one with odd bytes; any other content as it is."""
    if b"\0" in content:
        return content
    return masker.text(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _add(archive: tarfile.TarFile, name: str, content: bytes, moment: float) -> None:
    info = tarfile.TarInfo(name.encode("utf-8", "replace").decode())
    info.size, info.mtime, info.mode = len(content), int(moment), 0o600
    archive.addfile(info, io.BytesIO(content))


# -- Runs as a log of Inspect (https://inspect.aisi.org.uk), made of their journals: a sample for each run.


_STATUS = {"completed": "success", "failed": "error", "stopped": "cancelled"}

Record = dict[str, Any]


def inspect_log(store: RunStore, metas: Iterable[RunMeta]) -> Record:
    """Return the log of runs, of which the first determines the name and the status of the log."""
    runs = list(metas)
    samples = [_sample(store, meta) for meta in runs]
    first, whole = runs[0], samples[0]
    model = next(iter(whole["model_usage"]))
    used: dict[str, Usage] = {}
    for meta, sample in zip(runs, samples, strict=True):
        used |= {name: used.get(name, Usage()).plus(meta.usage) for name in sample["model_usage"]}
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
            "model_usage": {name: _usage(usage) for name, usage in used.items()},
        },
        "samples": samples,
    }
    if "error" in whole:
        log["error"] = whole["error"]
    return log


def _sample(store: RunStore, meta: RunMeta) -> Record:
    events = list(durable.records(store.paths.run(meta.run_id).events))
    request = store.read_request(meta.run_id)
    model = _model(events) or "none/unknown"
    messages = [{"role": "user", "content": request.prompt}, *_messages(events, model)]
    usage = _usage(meta.usage)
    result = store.read_result(meta.run_id)
    if result is not None and not any(message["role"] == "assistant" for message in messages):
        text = json.dumps(result.output, ensure_ascii=False) if result.has_output else result.text
        messages.append({"role": "assistant", "content": text, "model": model})  # of a flow, or of a program
    spoken = [message for message in messages if message["role"] == "assistant"]
    sample: Record = {
        "id": meta.run_id,
        "epoch": 1,
        "input": request.prompt,
        "target": "",
        "messages": messages,
        "output": {
            "model": model,
            "choices": [{"message": message, "stop_reason": "stop"} for message in spoken[-1:]],
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
        "completed_at": None if meta.ended_at is None else timestamp(meta.ended_at),
    }
    if meta.error is not None:
        sentence = f"{meta.error.code}: {meta.error.message}"
        sample["error"] = {"message": sentence, "traceback": "", "traceback_ansi": ""}
    return sample


def _model(events: list[Record]) -> str | None:
    """Return the model of a run. Events of the runs below it name theirs."""
    named = (event["model"] for event in events if event.get("type") == "run_started" and event.get("model"))
    return next(map(str, named), None)


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


# -- Runs as OpenTelemetry spans, made of their journals and sent as OTLP/JSON.
#
# Names and attributes are those of the GenAI conventions of OpenTelemetry (https://github.com/open-
# telemetry/semantic-conventions-genai); names that these lack begin with `subagent.`. Ids are digests of
# the ids of runs and calls, so a run that is exported again has the same spans.


VARIABLE = "SUBAGENT_OTLP"
"""Where each run sends its spans when it ends: an address, or a file that gets a line."""
END_SECONDS = 2.0
"""How long the end of a run waits for the spans to be taken."""
SEND_SECONDS = 30.0
MAX_TEXT = 100_000
"""A collector refuses, or bills, texts without a bound."""
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_PROVIDERS = {"messages": "anthropic", "claude": "anthropic", "codex": "openai", "gemini": "gcp.gemini"}
_INTERNAL, _CLIENT = 1, 3
_FAILED = 2

Event = dict[str, Any]
Span = dict[str, Any]


def is_address(target: str) -> bool:
    """Whether spans go to a collector, not into a file."""
    return target.startswith(("http://", "https://"))


def otlp(store: RunStore, metas: Iterable[RunMeta], environment: Mapping[str, str]) -> Event:
    """Return the spans of runs as one request of OTLP/JSON.

    Prompts, arguments and results are in it only if the variable of the conventions asks for them.
    """
    with_content = environment.get(_CONTENT, "").strip().lower() in ("true", "span_only", "span_and_event")
    spans = [span for meta in metas for span in _spans(store, meta, with_content=with_content)]
    name = environment.get("OTEL_SERVICE_NAME") or "subagent-server"
    resource = {"attributes": _attributes({"service.name": name, "service.version": __version__})}
    scope = {"scope": {"name": "subagent-server", "version": __version__}, "spans": spans}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def as_line(request: Event) -> bytes:
    """Return a request as it is sent, without a newline in it."""
    return json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the headers, which may hold a key, to another host, and not the spans."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error."""


def send(address: str, data: bytes, environment: Mapping[str, str], seconds: float = SEND_SECONDS) -> None:
    """Send spans to a collector. An address without a path is that of a whole collector.

    Raises:
        OSError, ValueError: they were not taken.
    """
    if urlsplit(address).path in ("", "/"):
        address = f"{address.rstrip('/')}/v1/traces"
    headers = {"content-type": "application/json", "user-agent": f"subagent-server/{__version__}"}
    for pair in environment.get(_HEADERS, "").split(","):
        name, found, value = pair.partition("=")
        if found:
            headers[name.strip()] = unquote(value.strip())
    request = urllib.request.Request(address, data, headers)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=seconds) as answer:
            reply = durable.as_object(answer.read1(MAX_TEXT)) or {}
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except urllib.error.URLError as error:  # its own text is one of Python
        raise OSError(getattr(error.reason, "strerror", None) or str(error.reason)) from error
    except HTTPException as error:  # no address, or no answer of HTTP
        raise OSError(str(error)) from error
    partial = reply.get("partialSuccess")
    if isinstance(partial, dict) and str(partial.get("rejectedSpans") or 0) != "0":
        why = partial.get("errorMessage") or "without a reason"
        raise OSError(cut(f"the collector refused {partial['rejectedSpans']} of them: {why}", 300))


def export_end(store: RunStore, meta: RunMeta, environment: Mapping[str, str]) -> str | None:
    """Export a run that ends, if it is wanted. Return a sentence if that failed: the run is not affected."""
    target = environment.get(VARIABLE, "").strip()
    if not target:
        return None
    trouble = [f"they were not taken within {END_SECONDS:g} s"]

    def export() -> None:
        try:
            data = as_line(otlp(store, [meta], environment))
            if is_address(target):
                send(target, data, environment, END_SECONDS)
            else:
                # where the file is to be, programs of the run may have made a link or a FIFO
                with Entry.at(Path(target).expanduser()).appender() as file:
                    file.write(data + b"\n")
            trouble.clear()
        except (OSError, ValueError, RuntimeError, SubagentError) as error:  # also of the home of nobody
            trouble[0] = str(error)[:300].rstrip(".")

    # A name that is looked up, or a collector that is silent, has no bound of its own that holds: the thread
    # is left behind.
    thread = threading.Thread(target=export, name="otlp", daemon=True)
    thread.start()
    thread.join(END_SECONDS)
    return (
        f"The spans of the run were not exported ({trouble[0]}); the run is not affected."
        if trouble
        else None
    )


def _spans(store: RunStore, meta: RunMeta, *, with_content: bool) -> Iterator[Span]:
    events = list(durable.records(store.paths.run(meta.run_id).events))
    request = store.read_request(meta.run_id)
    ended = meta.ended_at
    last = _nanoseconds(ended) if ended is not None else _time_of(events[-1]) if events else 0
    model = _model(events)
    yield _run_span(meta, request, model, last, with_content=with_content)
    calls: dict[str, Span] = {}
    chat: Span | None = None
    total, before = Usage(), Usage()
    spoken: list[Event] = []
    for event in events:
        kind, moment = event.get("type"), _time_of(event)
        another = event.get("model") if kind == "warning" else None  # the next model, after one that failed
        if kind == "turn" or (another is not None and chat is not None):
            if chat is not None:
                chat = _with_usage(chat, before, total, spoken)
                yield chat if another is None else _failed(chat, "model_error")
            model = model if another is None else str(another)
            facts = {"operation.name": "chat", "conversation.id": meta.run_id, "request.model": model}
            name, before, spoken = f"chat {model}" if model else "chat", total, []
            part = f"{kind} {event.get('turn', event.get('seq'))}"
            chat = _span(meta, part, name, moment, last, _gen_ai(facts), kind=_CLIENT)
        elif kind == "usage" and chat is not None:
            with suppress(ValidationError):  # a journal is data
                total = Usage.model_validate(event)
            chat["endTimeUnixNano"] = str(moment)
        elif kind == "text" and with_content:
            spoken.append({"role": "assistant", "parts": [{"type": "text", "content": event.get("text")}]})
        elif kind == "tool_call":
            call_id, tool = str(event.get("toolCallId")), str(event.get("toolName"))
            facts = {"operation.name": "execute_tool", "tool.name": tool, "tool.call.id": call_id}
            facts |= {"tool.call.arguments": event.get("arguments")} if with_content else {}
            facts |= {"tool.type": "function"}
            part, name = f"call {event.get('seq')}", f"execute_tool {tool}"  # ids are the program's own words
            calls[call_id] = _span(meta, part, name, moment, last, _gen_ai(facts))
        elif kind == "tool_result" and (call := calls.pop(str(event.get("toolCallId")), None)) is not None:
            call["endTimeUnixNano"] = str(moment)
            if with_content:
                call["attributes"] += _attributes({"gen_ai.tool.call.result": event.get("text")})
            yield _failed(call, "tool_error") if event.get("isError") else call
    if chat is not None:
        chat = _with_usage(chat, before, total, spoken)
        # Each reply has its usage in the journal: a last call without it has met the end of the run.
        yield chat if total != before or meta.error is None else _failed(chat, meta.error.code)
    yield from (_failed(call, "cancelled") for call in calls.values())


def _with_usage(chat: Span, before: Usage, total: Usage, spoken: list[Event]) -> Span:
    """Return the span of a call with all reports of it: a program may report its usage several times."""
    used = {} if total == before else _tokens(total.less(before))
    chat["attributes"] += _attributes({**used, "gen_ai.output.messages": spoken or None})
    return chat


def _run_span(
    meta: RunMeta, request: RunRequest, model: str | None, last: int, *, with_content: bool
) -> Span:
    facts = {
        "operation.name": "invoke_agent",
        "provider.name": _PROVIDERS.get(request.runner),
        "conversation.id": meta.run_id,
        "agent.name": meta.agent_name,
        "agent.description": request.agent.get("description") or None,
        "request.model": model,
        "output.type": "json" if request.agent.get("outputSchema") else "text",
    }
    if with_content:
        facts["input.messages"] = [{"role": "user", "parts": [{"type": "text", "content": request.prompt}]}]
    ours = {
        "subagent.run.status": meta.status.value,
        "subagent.run.parent_id": meta.parent_run_id,
        "subagent.run.root_id": meta.root_run_id,
        "subagent.run.depth": meta.depth,
        "subagent.run.turns": meta.usage.turns,
        "subagent.run.tool_calls": meta.usage.tool_calls,
    }
    begun = _nanoseconds(meta.started_at or meta.created_at)
    everything = {**_gen_ai(facts), **_tokens(meta.usage), **ours}
    span = _span(meta, "", f"invoke_agent {meta.agent_name}", begun, last, everything)
    if meta.status is Status.FAILED and meta.error is not None:
        _failed(span, meta.error.code, meta.error.message)
    return span


def _span(
    meta: RunMeta, part: str, name: str, begun: int, ended: int, facts: Event, kind: int = _INTERNAL
) -> Span:
    """Return the span of a run (`part` is empty), below that of its parent, or of a part of the run."""
    above = meta.run_id if part else meta.parent_run_id
    span = {
        "traceId": _digest(meta.root_run_id, 16),
        "spanId": _digest(f"{meta.run_id} {part}".strip(), 8),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(begun),
        "endTimeUnixNano": str(max(begun, ended)),
        "attributes": _attributes(facts),
    }
    return span if above is None else {**span, "parentSpanId": _digest(above, 8)}


def _failed(span: Span, error_type: str, message: str = "") -> Span:
    span["attributes"] += _attributes({"error.type": error_type})
    span["status"] = {"code": _FAILED, **({"message": message} if message else {})}
    return span


def _gen_ai(facts: Event) -> Event:
    return {f"gen_ai.{name}": value for name, value in facts.items()}


def _tokens(usage: Usage) -> Event:
    """Return the tokens of a call or a run, as far as they are known; input includes those of caches."""
    cached = (usage.cache_read_tokens, usage.cache_write_tokens)
    return {
        "gen_ai.usage.input_tokens": known_sum(usage.input_tokens, *cached),
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
    }


def _attributes(facts: Event) -> list[Event]:
    return [{"key": key, "value": _value(value)} for key, value in facts.items() if value is not None]


def _value(value: Any) -> Event:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"intValue": str(value)}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"stringValue": text[:MAX_TEXT]}


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000) * 1_000_000


def _time_of(event: Event) -> int:
    try:
        return _nanoseconds(datetime.fromisoformat(str(event.get("at"))))
    except ValueError:
        return 0  # a journal is data: a line that is damaged does not keep the others back
