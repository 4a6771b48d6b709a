"""Runs as resources: `run://{runId}/meta`, `/log` and `/result`."""

import asyncio
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from subagent_server.run.errors import BadArgument, CallerError, SubagentError, shorten
from subagent_server.run.files import Entry
from subagent_server.run.records import Message, RunMeta
from subagent_server.run.states import MAX_LABEL_CHARACTERS, cut, maybe_cut
from subagent_server.verbs.access import Caller
from subagent_server.verbs.get_logs import MAX_LINES, get_logs, why_empty
from subagent_server.verbs.list_runs import RunList
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import RunRow

Context = ServerRequestContext[Any, Any]
Kind = Literal["meta", "log", "result"]
Signature = tuple[int, int, int]
"""Inode, time of change in nanoseconds, and size of a file."""

NEWEST = 50
"""How many runs are listed besides the live ones."""
MAX_RESULT_CHARACTERS = 1_000_000
JSON = "application/json"
PLAIN = "text/plain"
FINAL_TTL_MS = 3_600_000
"""How long a client may keep what never changes again."""

TEMPLATES = [
    types.ResourceTemplate(
        uri_template=f"run://{{runId}}/{kind}",
        name=f"run {name}",
        title=f"{name.capitalize()} of a run",
        description=description,
        mime_type=mime_type,
    )
    for kind, name, mime_type, description in (
        ("meta", "state", JSON, "Everything that is recorded of a run: status, questions, steps, usage."),
        ("log", "log", PLAIN, "The last page of what a run did."),
        (
            "result",
            "result",
            PLAIN,
            "The whole result of a run that has ended: text, or JSON where its agent has a schema.",
        ),
    )
]
MAX_URI_CHARACTERS = 1_000
"""How much of an address that names no resource is repeated."""
_ADDRESS = re.compile(r"run://(.*)/(meta|log|result)", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """Which of a run's documents; the id is not checked yet."""

    run_id: str
    kind: Kind

    def __str__(self) -> str:
        return f"run://{self.run_id}/{self.kind}"


@dataclass(frozen=True)
class Document:
    """The text of a document. `is_final`: it never changes again."""

    text: str
    mime_type: str
    is_final: bool = False


class ResourceHandlers:
    """Lists and reads the documents of the runs that are open to a caller."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the documents of the live runs and of the newest."""
        _refuse_cursor("resources/list", params)
        listed = await asyncio.to_thread(list_documents, self._service, self._caller)
        return types.ListResourcesResult(resources=listed)

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Return the addresses that any run has, listed or not."""
        _refuse_cursor("resources/templates/list", params)
        return types.ListResourceTemplatesResult(
            resource_templates=TEMPLATES, ttl_ms=FINAL_TTL_MS, cache_scope="public"
        )

    async def read(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return a document.

        Raises:
            MCPError: with the sentence that a tool would refuse the same with.
        """
        try:
            address = parse_address(params.uri)
            document = await asyncio.to_thread(read_document, self._service, address, self._caller)
        except SubagentError as error:
            raise refusal(error, {"uri": params.uri[:MAX_URI_CHARACTERS]}) from error
        content = types.TextResourceContents(uri=params.uri, mime_type=document.mime_type, text=document.text)
        return types.ReadResourceResult(
            contents=[content], ttl_ms=FINAL_TTL_MS if document.is_final else 0, cache_scope="private"
        )


def _refuse_cursor(method: str, params: types.PaginatedRequestParams | None) -> None:
    """Refuse a cursor for a list that has one page. Raises MCPError."""
    if params is not None and params.cursor is not None:
        raise MCPError(
            types.INVALID_PARAMS,
            f"{method}: {shorten(params.cursor)} is not a cursor of this list, which has one page: "
            "leave cursor out.",
            {"parameter": "cursor"},
        )


def refusal(error: SubagentError, data: dict[str, Any] | None = None) -> MCPError:
    """Return the protocol error for what a tool would answer: the caller's fault, or the machine's."""
    code = types.INVALID_PARAMS if isinstance(error, CallerError) else types.INTERNAL_ERROR
    return MCPError(code, error.sentence, data)


def parse_address(uri: str) -> Address:
    """Return the address that a URI names.

    Raises:
        BadArgument: it is not the URI of a document of a run.
    """
    found = _ADDRESS.fullmatch(uri)
    if found is None:
        raise BadArgument(
            f"{shorten(uri)} is no resource here: a run has run://<runId>/meta, /log and /result, "
            "and resources/list or list_runs shows the ids."
        )
    return Address(found[1], cast(Kind, found[2]))


def list_documents(service: Service, caller: Caller) -> list[types.Resource]:
    """Return the documents of the caller's live runs and of its newest ones, the newest run first.

    Of a run whose state cannot be read the state is listed, with the reason.
    """
    store = service.store
    if caller.run_id is None:
        near = {*islice(store.newest_first(), NEWEST), *store.live_ids()}
    else:
        near = {caller.run_id, *store.children_of(caller.run_id)[-NEWEST:]}
    rows = RunList(store, caller=caller, everyone=False, named=near.__contains__).every()
    listed: list[types.Resource] = []
    # The runs that need an answer come first there; a client that compares two lists needs a fixed order.
    for row in sorted(rows, key=lambda row: row.run_id, reverse=True):
        if row.unreadable is not None:
            title = f"{row.run_id}: its state cannot be read"
            listed.append(_resource(Address(row.run_id, "meta"), title, JSON, row.unreadable))
        else:
            listed += _documents(service, row)
    return listed


def _documents(service: Service, row: RunRow) -> list[types.Resource]:
    agent = cut(row.agent or "", MAX_LABEL_CHARACTERS)
    who = f"{agent} {cut(row.label, MAX_LABEL_CHARACTERS) if row.label else row.run_id}"

    def listed(kind: Kind, what: str, mime_type: str) -> types.Resource:
        return _resource(Address(row.run_id, kind), f"{who}: {what}", mime_type)

    found = [listed("meta", "state", JSON), listed("log", "log", PLAIN)]
    if service.store.paths.run(row.run_id).result.exists():
        found.append(listed("result", "result", JSON if _is_structured(service, row.run_id) else PLAIN))
    return found


def _is_structured(service: Service, run_id: str) -> bool:
    try:
        result = service.store.read_result(run_id)
    except SubagentError:
        return False
    return result is not None and result.has_output


def _resource(address: Address, title: str, mime_type: str, description: str | None = None) -> types.Resource:
    return types.Resource(
        uri=str(address),
        name=f"{address.run_id} {address.kind}",
        title=title,
        description=description,
        mime_type=mime_type,
    )


def read_document(service: Service, address: Address, caller: Caller) -> Document:
    """Return a document of a run that is open to the caller.

    Raises:
        BadArgument: the run has no result.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    if address.kind == "log":
        return Document(_log(service, address.run_id, caller), PLAIN)
    meta = observe(service.store, address.run_id, caller).meta
    return _state(meta) if address.kind == "meta" else _result(service, meta)


def _state(meta: RunMeta) -> Document:
    """Return the state without the hash of the token; the words of a very large one are cut."""
    shown = meta.model_copy(update={"child_token_hash": None})
    text = shown.to_json().decode()
    if len(text) > MAX_RESULT_CHARACTERS:
        messages = [_shortened(message) for message in meta.messages]
        text = shown.model_copy(update={"messages": messages}).to_json().decode()
    return Document(text, JSON)


def _shortened(message: Message) -> Message:
    """Return a question with its words cut; `check_status` with its id shows them."""
    cuts = {
        "question_content": cut(message.question_content, MAX_LABEL_CHARACTERS),
        "answer_content": maybe_cut(message.answer_content, MAX_LABEL_CHARACTERS),
    }
    return message.model_copy(update={**cuts, "options": None})


def _log(service: Service, run_id: str, caller: Caller) -> str:
    """Return the last page of the log, and how to get the lines before it and after it."""
    page = get_logs(service, run_id, "log", lines=MAX_LINES, caller=caller)
    if len(page.text.encode()) + 1 >= int(page.cursor):
        return f"{page.text}\n" if page.text else ""
    return (
        f"{page.text}\n\n[This is the end of a longer log. From its beginning: "
        f'get_logs(runId="{run_id}", cursor="0", lines={MAX_LINES}); then with the cursor of each page.]\n'
    )


def _result(service: Service, meta: RunMeta) -> Document:
    """Return the result as get_logs does: the text, or the whole of `result.json` if it is structured."""
    result = service.store.read_result(meta.run_id)
    if result is None:
        raise BadArgument(why_empty(meta, "result"))
    text = result.to_json().decode() if result.has_output else result.text
    if len(text) > MAX_RESULT_CHARACTERS:
        more = f'get_logs(runId="{meta.run_id}", stream="result", cursor="{MAX_RESULT_CHARACTERS}")'
        return Document(f"{text[:MAX_RESULT_CHARACTERS]}\n\n[It continues: {more}.]\n", PLAIN, is_final=True)
    return Document(text, JSON if result.has_output else PLAIN, is_final=True)


def file_of(service: Service, address: Address) -> Entry:
    """Return the file behind an address, whose changes are those of the document; it may not be there yet.

    Raises:
        InvalidRunId.
    """
    run = service.store.paths.run(address.run_id)
    return {"meta": run.meta, "log": run.log, "result": run.result}[address.kind]


def signature(file: Entry | Path) -> Signature | None:
    """Return a value that differs after each change of a file, or None if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
