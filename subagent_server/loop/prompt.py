"""The first words to the model: the agent's prompt, a short preamble, the task and its inputs."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from subagent_server.loop.web import Block
from subagent_server.run.history import StoredFile
from subagent_server.toolbox.basic import CONTRACT_COMPLETE

LARGEST_INPUT = 32 << 20
"""In bytes: more than a start takes."""


@dataclass(frozen=True)
class Task:
    """The work as it was given. `inputs` are the copied files with their media types."""

    run_id: str
    agent_name: str
    system_prompt: str
    prompt: str
    cwd: str
    inputs: tuple[tuple[StoredFile, str], ...] = ()
    continues: str | None = None
    by_contract: bool = False
    location: str = ""
    """What the model has to know of the place where its programs work; empty if they may do everything."""


def system_blocks(task: Task, *, may_ask: bool, structured: bool) -> list[Block]:
    """Return the system prompt, literally, and the preamble behind it.

    The prompt stands first and is a cache breakpoint: it is the same for every run of the agent.
    """
    blocks: list[Block] = []
    if task.system_prompt.strip():
        blocks.append({"type": "text", "text": task.system_prompt, "cache_control": {"type": "ephemeral"}})
    blocks.append({"type": "text", "text": preamble(task, may_ask=may_ask, structured=structured)})
    return blocks


def preamble(task: Task, *, may_ask: bool, structured: bool) -> str:
    """Return the few lines that every run gets: its name and place, how to ask, how to finish."""
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


def task_blocks(prompt: str, inputs: Sequence[tuple[StoredFile, str]]) -> list[Block]:
    """Return the inputs and the prompt behind them; a run that carries another on may have neither.

    Raises:
        OSError: a copied input cannot be read.
    """
    blocks = [block for file, media_type in inputs for block in _input_blocks(file, media_type)]
    return [*blocks, *([{"type": "text", "text": prompt}] if prompt.strip() else [])]


def _input_blocks(file: StoredFile, media_type: str) -> list[Block]:
    name = file.name.split("-", 1)[-1]
    content = file.read(LARGEST_INPUT)
    if media_type == "text/plain":
        return [{"type": "text", "text": f"<input name={name!r}>\n{content.decode('utf-8')}\n</input>"}]
    data = base64.standard_b64encode(content).decode("ascii")
    source = {"type": "base64", "media_type": media_type, "data": data}
    kind = "document" if media_type == "application/pdf" else "image"
    return [{"type": "text", "text": f"Input {name!r}:"}, {"type": kind, "source": source}]
