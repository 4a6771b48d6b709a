"""`subagent script`: print a run that has ended as a script for `subagent run --script`.

The transcript is data: what does not look like a message of a model is left out. Secrets were masked when the
transcript was written.

Tested in `tests/cli/test_script.py`.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import click
import yaml

from subagent_server.cli.console.app import Session, complete_runs, json_session
from subagent_server.cli.console.terminal import EarlyExit, ExitCode, out, out_json
from subagent_server.extensions.simulator import ScriptError, load_script
from subagent_server.run.durable import with_texts
from subagent_server.run.errors import BadArgument, SubagentError, visible
from subagent_server.run.journal import Message, read_transcript
from subagent_server.run.records import RunMeta
from subagent_server.verbs.access import Caller
from subagent_server.verbs.reconcile import observe, subtree
from subagent_server.verbs.service import Service

_PROMPT_CHARACTERS = 200
"""Of the prompt of a run below, which distinguishes its conversation from others of the same agent."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")

Turn = dict[str, Any]


@click.command()
@click.argument("run", shell_complete=complete_runs)
@json_session
def script(session: Session, run: str) -> None:
    """Print a run that has ended as a script that plays its model again.

    `subagent script RUN > again.yaml`, then `subagent run AGENT PROMPT --script again.yaml` gives the same
    turns with the same calls of tools; the tools really run again. Runs that it started are in it too. With
    --json the same as JSON.
    """
    run_id = session.run_id(run)
    made = script_of_run(session.service, run_id, session.caller)
    try:
        load_script(made)
    except ScriptError as error:
        raise EarlyExit(
            ExitCode.FAILED, f"run {run_id} has turns that no script can play: {error.sentence}"
        ) from error
    if session.as_json:
        out_json(made)
        return
    out(f"# The turns of run {run_id}. Play them: subagent run AGENT PROMPT --script FILE")
    out(_yaml(made).rstrip("\n"))


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and the same value twice without an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(made: dict[str, Any]) -> str:
    """Return YAML that is safe on a terminal: a character that does not print is an escape, as all others."""
    text = _dumped(made, allow_unicode=True)
    return text if visible(text, "\n") == text else _dumped(made, allow_unicode=False)


def _dumped(made: dict[str, Any], *, allow_unicode: bool) -> str:
    text: str = yaml.dump(made, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=110)
    return text


# -- The turns of a run and of those below it, as a script.


def script_of_run(service: Service, run_id: str, caller: Caller) -> dict[str, Any]:
    """Return a script whose turns are those of a run, and whose conversations are those of the runs below it.

    Raises:
        UnknownRun, UnreadableMeta, NotAllowed, StorageFailed: as reading a run does.
        BadArgument: the run has not ended, or no model ever answered.
    """
    observed = observe(service.store, run_id, caller)
    if observed.meta.ended_at is None:
        raise BadArgument(f"Run {run_id} has not ended yet: wait for its end, then make a script of it.")
    turns, below = _turns(service, run_id), list(_conversations(service, observed.meta, caller))
    if not turns and not below:  # a flow has no model, and the runs below it do
        raise BadArgument(f"The model of run {run_id} never answered, so there is nothing to play again.")
    return {name: part for name, part in (("conversations", below), ("turns", turns)) if part}


def _conversations(service: Service, meta: RunMeta, caller: Caller) -> Iterator[dict[str, Any]]:
    """Yield the conversation of every run below that is open to the caller.

    Each is known by its agent and the beginning of its prompt.
    """
    for below in filter(caller.may_open, islice(subtree(service.store, meta), 1, None)):
        with suppress(SubagentError):  # it is not readable, so the script lacks it
            request = service.store.read_request(below.run_id)
            known_by = {
                "system": f"of the subagent {_literal(below.agent_name)},",
                "prompt": _literal(request.prompt[:_PROMPT_CHARACTERS]),
            }
            if turns := _turns(service, below.run_id):
                yield {"when": known_by, "turns": turns}


def _turns(service: Service, run_id: str) -> list[Turn]:
    messages = read_transcript(service.store.paths.run(run_id))
    return [_turn(message) for message in messages if message.get("role") == "assistant"]


def _turn(message: Message) -> Turn:
    """Return a message as a turn: in the short form if it is a thought, a text and calls, in this order."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    blocks = [made for block in parts if isinstance(block, dict) and (made := _block(block))]
    kinds = [next(iter(block)) for block in blocks]
    short = [kind for kind in ("thinking", "text") if kind in kinds]
    rest = len(kinds) - len(short)
    turn: Turn = {"content": blocks}
    if kinds == [*short, *["name"] * rest]:
        turn = {kind: blocks[number][kind] for number, kind in enumerate(short)}
        turn |= {"tool_use": blocks[len(short) :]} if rest else {}
    stop_reason, usual = message.get("stopReason"), "tool_use" if "name" in kinds else "end_turn"
    return turn | ({"stop_reason": stop_reason} if stop_reason not in (None, usual) else {})


def _block(block: dict[str, Any]) -> Turn | None:
    """Return a block of a message as a block of a script; what it does not know is sent as it is."""
    match block:
        case {"type": "text", "text": str(text)} if not block.get("citations"):
            return {"text": _unfilled(text)}
        case {"type": "thinking", "thinking": str(text)}:
            return {"thinking": _unfilled(text)}
        case {"type": "redacted_thinking", "data": str(data)}:
            return {"data": data}
        case {"type": "tool_use", "name": str(name), "input": dict(arguments)}:
            return {"name": name, "input": with_texts(arguments, _unfilled)}
        case {"type": str()}:
            return {"raw": block}
    return None


def _unfilled(text: str) -> str:
    """Return a text with each `$${` escaped, which a script reads as `${`."""
    return text.replace("$${", "$$${")


def _literal(text: str) -> str:
    """Return a regular expression for this very text, as readable as it can be."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", text)
