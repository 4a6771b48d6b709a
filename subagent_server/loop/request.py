"""What the model is sent: the agent's prompt, a short preamble, the task, and the conversation behind them.

- Three marks are for the prompt cache (`marked`). The API writes an entry at each mark, and from a mark looks
  back over 20 blocks at most for an entry to read. One turn with many calls is longer than that. So besides
  the end of the request, which the API marks by itself (`cache_control` of the whole request), the end of the
  request before is marked: there the entry is for sure. The third closes the part that every run of an agent
  shares: its tools and its system prompt.
- A request takes 32 MB and 100 images; with more than 20 images, none of more than 2,000 pixels a side. A
  conversation that has grown larger would be refused at each further call, and so would whatever continues
  it. So a line replaces what is too much (`fitting`); the transcript keeps all of it.
- In a long conversation the API itself hides old tool results from the model, if it can (`ContextEdits`;
  `clear_tool_uses_20250919`, a beta). The conversation here stays whole; each request asks anew. A model
  without this feature gets plain requests, and its run fails with a clear error when the window is full.
"""

import re
from base64 import b64decode, standard_b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.run.durable import with_texts
from subagent_server.run.files import Entry
from subagent_server.run.images import size_of
from subagent_server.toolbox.basic import CONTRACT_COMPLETE

Block = dict[str, Any]
"""A part of a message of the Messages API."""
Message = dict[str, Any]

MARK: Block = {"type": "ephemeral"}
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Blocks that may have no mark, and that no other model takes."""

MOST_ATTACHMENTS = 100
MOST_CHARACTERS = 20 << 20
"""In base64, of all images and documents: the rest of a request is for text."""
MANY_IMAGES = 20
MOST_PIXELS_AMONG_MANY = 2_000
_HEADER = 1 << 18
"""How much of the base64 of an image is searched for its size."""
_LEFT_OUT: Block = {
    "type": "text",
    "text": "[An image or document is left out here, because one request cannot hold all of them. Look at it "
    f"again if you need it; make an image of more than {MOST_PIXELS_AMONG_MANY:,} pixels a side smaller.]",
}
LARGEST_INPUT = 32 << 20
"""In bytes: more than a start takes."""

_Position = tuple[int, int, int | None]
"""The message, the block in it, and the part of that block if it is the result of a tool."""


@dataclass(frozen=True)
class Task:
    """The work as it was ordered. `inputs` are the copied files with their media types."""

    run_id: str
    agent_name: str
    system_prompt: str
    prompt: str
    cwd: str
    inputs: tuple[tuple[Entry, str], ...] = ()
    continues: str | None = None
    by_contract: bool = False
    location: str = ""
    """What the model has to know of where its programs work; empty if they may do everything."""


def system_blocks(task: Task, *, may_ask: bool, structured: bool) -> list[Block]:
    """Return the system prompt, literally, and the preamble behind it.

    The prompt comes first and is a cache breakpoint: it is the same for every run of the agent.
    """
    blocks: list[Block] = []
    if task.system_prompt.strip():
        blocks.append({"type": "text", "text": task.system_prompt, "cache_control": MARK})
    blocks.append({"type": "text", "text": preamble(task, may_ask=may_ask, structured=structured)})
    return blocks


def preamble(task: Task, *, may_ask: bool, structured: bool) -> str:
    """Return the few lines that every run gets: its name and working directory, how to ask, how to finish."""
    lines = [
        _who(task),
        "Another agent, your parent, gave you the task and sees only your final result, not your steps.",
    ]
    if task.continues is not None:
        lines.append(
            f"You continue run {task.continues}, whose conversation this is. Its shell, and whatever it left "
            "running, are gone."
        )
    if task.location:
        lines.append(task.location)
    if may_ask:
        lines.append(
            "If you need a decision or a fact that only the parent has, call ask_parent; "
            "otherwise decide yourself."
        )
    if task.by_contract:
        lines.append(
            "When you have fulfilled the contract, call agent_complete once, with your agent_id and a "
            "summary of the result: that ends your work. A message whose last line is "
            f"{CONTRACT_COMPLETE} does the same."
        )
    elif structured:
        lines.append("When you are done, call final_answer once with the whole result: that ends your work.")
    else:
        lines.append("When you are done, end with one message that holds the whole result.")
    return "\n".join(lines)


def _who(task: Task) -> str:
    if task.by_contract:
        return f"Your agent_id is {task.run_id}. You work by a contract, which is the message, in {task.cwd}."
    return f"You are run {task.run_id} of the subagent {task.agent_name}, working in {task.cwd}."


def task_blocks(prompt: str, inputs: Sequence[tuple[Entry, str]]) -> list[Block]:
    """Return the inputs and the prompt behind them; a run that continues another may have neither.

    Raises:
        OSError: a copied input cannot be read.
    """
    blocks = [block for file, media_type in inputs for block in _input_blocks(file, media_type)]
    return [*blocks, *([{"type": "text", "text": prompt}] if prompt.strip() else [])]


def _input_blocks(file: Entry, media_type: str) -> list[Block]:
    name = file.name.split("-", 1)[-1]  # the copies are numbered: two inputs may have one name
    content = file.read(LARGEST_INPUT)
    if media_type == "text/plain":
        return [{"type": "text", "text": f"<input name={name!r}>\n{content.decode('utf-8')}\n</input>"}]
    data = standard_b64encode(content).decode("ascii")
    source = {"type": "base64", "media_type": media_type, "data": data}
    kind = "document" if media_type == "application/pdf" else "image"
    return [{"type": "text", "text": f"Input {name!r}:"}, {"type": kind, "source": source}]


def marked(system: list[Block], tools: list[Block], messages: list[Message]) -> Block:
    """Return the parts of a request with their marks, three at most of the four that the API takes."""
    if tools and not any("cache_control" in block for block in system):
        tools = [*tools[:-1], tools[-1] | {"cache_control": MARK}]
    parts: Block = {"system": system, "messages": _marked_messages(messages), "cache_control": MARK}
    return parts | ({"tools": tools} if tools else {})


def _marked_messages(messages: list[Message]) -> list[Message]:
    """Return the messages with a mark at the end of the request before this one."""
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    last = answers[-1] - 1 if answers else -1
    if last < 0 or not isinstance(messages[last]["content"], list):
        return messages
    content = list(messages[last]["content"])
    spots = [n for n, block in enumerate(content) if block.get("type") not in THOUGHTS]
    if not spots:
        return messages
    content[spots[-1]] = content[spots[-1]] | {"cache_control": MARK}
    return [*messages[:last], messages[last] | {"content": content}, *messages[last + 1 :]]


def fitting(messages: list[Message]) -> list[Message]:
    """Return the conversation with as many images and documents as a request takes, the newest ones.

    Each time that they become too many, the older half goes: every change costs the prompt cache.
    """
    live: deque[tuple[_Position, Block]] = deque()
    left_out: set[_Position] = set()
    size = 0
    for position, block in _attachments(messages):
        live.append((position, block))
        size += len(_data(block))
        if len(live) > MOST_ATTACHMENTS or size > MOST_CHARACTERS:
            while len(live) > 1 and (len(live) > MOST_ATTACHMENTS // 2 or size > MOST_CHARACTERS // 2):
                old, gone = live.popleft()
                left_out.add(old)
                size -= len(_data(gone))
    if sum(block["type"] == "image" for _, block in live) > MANY_IMAGES:
        left_out.update(position for position, block in live if _is_large(block))
    return _without(messages, left_out) if left_out else messages


def _attachments(messages: list[Message]) -> Iterator[tuple[_Position, Block]]:
    for number, message in enumerate(messages):
        content = message["content"]
        for position, block in enumerate(content if isinstance(content, list) else ()):
            inside = block.get("content") if block.get("type") == "tool_result" else None
            parts = enumerate(inside) if isinstance(inside, list) else [(None, block)]
            for inner, part in parts:
                if part.get("type") in ("image", "document") and _data(part):
                    yield (number, position, inner), part


def _data(block: Block) -> str:
    source = block.get("source")
    return str(source.get("data", "")) if isinstance(source, dict) else ""


def _is_large(block: Block) -> bool:
    if block["type"] != "image":
        return False
    size = size_of(b64decode(_data(block)[:_HEADER] + "=="))
    return size is not None and max(size) > MOST_PIXELS_AMONG_MANY


def _without(messages: list[Message], left_out: set[_Position]) -> list[Message]:
    changed = list(messages)
    for number, position, inner in left_out:
        content = list(changed[number]["content"])
        if inner is None:
            content[position] = _LEFT_OUT
        else:
            parts = list(content[position]["content"])
            parts[inner] = _LEFT_OUT
            content[position] = content[position] | {"content": parts}
        changed[number] = changed[number] | {"content": content}
    return changed


# -- the text of messages


def text_of(block: Block) -> str:
    """Return the text of a block; that of any other block is empty."""
    text = block.get("text") if block.get("type") == "text" else None
    return text if isinstance(text, str) else ""


def whole_characters(value: Any) -> Any:
    """Return JSON data whose halves of characters are joined; a half alone becomes U+FFFD.

    Gateways that count in UTF-16 cut texts in the middle of a character, and models write half an escape.
    No request can hold that.
    """
    return with_texts(
        value, lambda text: text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )


def joined_text(blocks: Iterable[Block]) -> str:
    """Return all text of a message, its pieces a blank line apart.

    A reply with citations comes in pieces of sentences: a piece with citations belongs to its neighbours.
    """
    joined = ""
    before: Block | None = None
    for block in blocks:
        text = text_of(block)
        if text.strip() or (text and before is not None):
            cited = before is not None and bool(before.get("citations") or block.get("citations"))
            if cited or not joined:
                joined += text
            elif text.strip():
                joined += f"\n\n{text}"
        before = block if text else None
    return joined if joined.strip() else ""


# -- old results of tools, which the API hides from the model

BETA = "context-management-2025-06-27"
DEFAULT_WINDOW = 200_000
"""In tokens, for a model that the price list does not know."""
FULL = 0.6
"""At which part of the window old results go: the rest has room for a reply and the results of a turn."""
WORTH_IT = 0.1
"""The part of the window that has to become free: each clearing loses the prompt cache of all behind it."""
KEPT_USES = 5
NEVER_CLEARED = ("ask_parent", "final_answer", "agent_complete")

_NAME = re.compile(r"claude-[a-z]+-(\d+)(?:-(\d{1,2})(?!\d))?")
_FIRST = (4, 5)


def can_edit(model: str) -> bool:
    """Whether the API clears tool uses for this model: those from Claude 4.5 on."""
    name = _NAME.match(model)
    return name is not None and (int(name[1]), int(name[2] or 0)) >= _FIRST


class ContextEdits:
    """Asks for the edits with each request, and records each further clearing."""

    def __init__(self, model: str, window: int | None) -> None:
        self._window = window or DEFAULT_WINDOW
        self._wanted = can_edit(model)
        self._cleared = 0

    def options(self) -> dict[str, Any]:
        """Return the further parts of a request, as options of the SDK; empty if it needs none."""
        if not self._wanted:
            return {}
        edit = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": int(self._window * FULL)},
            "keep": {"type": "tool_uses", "value": KEPT_USES},
            "clear_at_least": {"type": "input_tokens", "value": int(self._window * WORTH_IT)},
            "exclude_tools": list(NEVER_CLEARED),
        }
        return {
            "extra_headers": {"anthropic-beta": BETA},
            "extra_body": {"context_management": {"edits": [edit]}},
        }

    def give_up(self, message: str) -> bool:
        """Whether the API refused a request because of the edits. Then no later request has any."""
        words = ("context_management", "context-management", "clear_tool_uses", "anthropic-beta")
        refused = self._wanted and any(word in message for word in words)
        self._wanted = self._wanted and not refused
        return refused

    def record_edits(self, applied: list[dict[str, Any]], record: Callable[..., None]) -> None:
        """Append to the journal how much the API has cleared, whenever it is more than before."""
        names = ("cleared_tool_uses", "cleared_input_tokens")
        uses, tokens = (sum(n for e in applied if isinstance(n := e.get(name), int)) for name in names)
        if uses > self._cleared:
            record("context_edited", clearedToolUses=uses, clearedTokens=tokens)
        self._cleared = uses
