"""Which call of a program is which, by what it asks and never by its position; and what becomes of it. Pure.

Two calls are one and the same if an agent would be asked the same: prompt, system prompt, model, tools,
schema, contents of the inputs, base commit. Equal calls of one program are distinguished by their number, or
by the `key` that the program sets.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import rfc8785

from subagent_server.agents.known_names import resolve_model
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument
from subagent_server.run.records import Record
from subagent_server.run.states import Status

CUT = frozenset({"crashed", "lost", "timeout", "budget", "storage"})
"""The codes of runs that something else has ended: they continue at their last whole turn."""
_ASKED = (
    *("runner", "command", "args", "effort", "tools", "disallowed_tools", "agents", "output_schema"),
    *("named_servers", "other_models", "code_mode", "isolation"),
)
"""What is asked of an agent besides prompts and model; limits, description and environment are not."""
_LARGEST = 2**53 - 1
_OF_SERVERS = ("command", "args", "url", "enabled_tools", "disabled_tools", "prefix")


def _integer(digits: str) -> Any:
    """Return an integer; one that RFC 8785 does not have, such as those of 64 bits, as a text."""
    return int(digits) if abs(int(digits)) <= _LARGEST else {"integer": digits}


def digest(*values: Any) -> str:
    """Return the hash of values of JSON in their canonical form (RFC 8785). Raises BadArgument."""
    try:
        in_domain = json.loads(json.dumps(values), parse_int=_integer)
        return hashlib.sha256(rfc8785.dumps(in_domain)).hexdigest()
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"A call has no identity: {error}.") from error


def call_digest(
    agent: AgentDefinition, prompt: str, inputs: Sequence[bytes], cwd: str | None, base: str | None
) -> str:
    """Return the hash of a call. `cwd` is as the program wrote it, `base` the commit of its worktree.

    Raises:
        BadArgument.
    """
    if agent.runner == "flow":  # an edited file is the same call: its run is continued
        asked: dict[str, Any] = {"flow": agent.name}
    else:
        servers = {name: _dumped(server, _OF_SERVERS) for name, server in agent.mcp_servers.items()}
        asked = {
            "systemPrompt": agent.system_prompt,
            "model": resolve_model(agent.model),
            "definition": {**_dumped(agent, _ASKED), "mcp_servers": servers},
        }
    hashes = [hashlib.sha256(data).hexdigest() for data in inputs]
    return digest({**asked, "prompt": prompt, "inputs": hashes, "cwd": cwd, "base": base})


def _dumped(record: Record, keys: Iterable[str]) -> dict[str, Any]:
    # Without defaults, or a key that a later version adds would make every call another one.
    return record.model_dump(mode="json", by_alias=False, include={*keys}, exclude_defaults=True)


class Identities:
    """Computes the identity of each call of a program: from its hash and key, or its number among equals."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def of(self, hashed: str, key: str | None = None) -> str:
        """Return the identity of the next call with this hash."""
        if key is not None:
            return digest(hashed, "key", key)
        self._numbers[hashed] += 1
        return digest(hashed, "number", self._numbers[hashed])


class Fate(StrEnum):
    """What becomes of a call: how the lists of a flow name it."""

    NEW = "new"
    RECORDED = "recorded"
    RESUMED = "resumed"
    RUNNING = "running"


def fate_of(status: Status, code: str | None, *, has_begun: bool, is_ours: bool, retry_failed: bool) -> Fate:
    """Return what becomes of a call for which there is a run of this status and failure.

    `has_begun`: the run has a conversation; `is_ours`: the program's own run has started it.
    """
    if not status.is_terminal and is_ours:
        return Fate.RUNNING
    if status is Status.COMPLETED:
        return Fate.RECORDED
    if not status.is_terminal or status is Status.STOPPED or code in CUT:  # a live one will be stopped
        return Fate.RESUMED if has_begun else Fate.NEW
    return Fate.NEW if retry_failed or not has_begun else Fate.RECORDED
