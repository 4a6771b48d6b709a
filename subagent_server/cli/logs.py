"""`subagent logs`: print or follow the logs of runs, for people or as events."""

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

import click

from subagent_server.cli.console.app import Session, complete_runs, json_session
from subagent_server.cli.console.follow import Wakeup, interrupts_kept, watching
from subagent_server.cli.console.option_types import Count
from subagent_server.cli.console.terminal import (
    OutputClosed,
    coloured,
    cut,
    err,
    escape_lines,
    folded,
    has_person,
    is_terminal,
    line_width,
    one_line,
    out,
    out_json,
    padded,
    reader_is_gone,
    width_of,
    with_local_time,
    without_colours,
)
from subagent_server.run.durable import parse
from subagent_server.run.errors import SubagentError
from subagent_server.run.journal import count, in_order, page, render
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import TOKENS, dollars
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.run.watch import Watcher
from subagent_server.verbs.reconcile import Observed, subtree

Show = Callable[[str, str], None]
"""Called with the id of a run and a new line of its journal."""


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Follow until the runs have ended.")
@click.option(
    "-n",
    "--tail",
    "count",
    type=Count(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Begin with the last N events of each run.",
)
@click.option("--tree", is_flag=True, help="The runs that they started, too.")
@click.option("--full", is_flag=True, help="Everything that the journal has of tools and texts.")
@json_session
def logs(session: Session, names: tuple[str, ...], follow: bool, count: int, tree: bool, full: bool) -> None:
    """Print the log of a run, or follow it.

    Of several runs each line begins with agent and id. With --json: events, one JSON object a line, with
    `runId` if there are several runs. Ctrl-C stops the following, never the runs.
    """
    run_ids = _with_children(session, names) if tree else session.run_ids(names)
    agents = {run_id: session.open_run(run_id).meta.agent_name for run_id in run_ids}
    several = tree or len(run_ids) > 1
    show = _shower(session, agents, full=full, several=several)
    paths = session.service.store.paths
    tails = {run_id: page(paths.run(run_id).events, None, count) for run_id in run_ids}
    with watching(session, *run_ids):
        earlier = ((run_id, line) for run_id, each in tails.items() for line in each.lines)
        for run_id, line in in_order(earlier) if several else earlier:
            show(run_id, line)
        if follow:
            with LogFollower(session, tree=tree) as follower:
                for run_id, each in tails.items():
                    follower.add(run_id, each.cursor)
                follower.until(lambda _: False, show)
        elif not any(each.cursor for each in tails.values()):
            waiting = session.command("logs", "-f", run_ids[0])
            err(f"Run {run_ids[0]} has no log yet: `{waiting}` waits for it.")


def _with_children(session: Session, names: tuple[str, ...]) -> list[str]:
    """Return the runs that are named, each followed by all runs below."""
    found: dict[str, None] = {}
    for run_id in session.run_ids(names):
        meta = session.open_run(run_id).meta
        found.update({below.run_id: None for below in subtree(session.service.store, meta)})
    return list(found)


def _shower(session: Session, agents: dict[str, str], *, full: bool, several: bool) -> Show:
    writers: dict[str, EventText] = {}

    def show(run_id: str, line: str) -> None:
        if session.as_json:
            if (event := parse(line)) is not None:  # a line torn by a crash is not an event
                out_json({"runId": run_id, **event} if several else event, indent=None)
            return
        if run_id not in agents:  # a run that has been started since
            agents[run_id] = ""
            with suppress(SubagentError):
                agents[run_id] = session.service.store.read(run_id).agent_name
        if run_id not in writers:
            begin = _prefix(agents, run_id) if several else ""
            writers[run_id] = EventText(begin, full, apart=agents if several else ())
        for each in writers[run_id].lines_of(line):
            out(each)

    return show


# -- The events of runs as text: coloured, named if there are several runs, and never printed twice.


Event = dict[str, Any]
_CLOCK = 9
"""Columns of the time before the first line of an event."""
_INDENT = " " * 11
_LEAST_ROOM = 30
"""Columns behind a prefix, below which the terminal breaks the lines."""
_MOST_NAME = 24
_COLOURS = {
    "run_started": "bold",
    "thought": "grey",
    "usage": "grey",
    "turn": "grey",
    "tool_call": "cyan",
    "tool_result": "grey",
    "program_call": "cyan",
    "program_result": "grey",
    "question": "yellow",
    "reply": "yellow",
    "no_reply": "yellow",
    "warning": "yellow",
    "server_log": "grey",
}
_ENDS = {"completed": "green", "failed": "red", "stopped": "grey"}
_NAMES = ("blue", "magenta", "cyan", "green", "yellow")
_SHOWN_OTHERWISE = frozenset({"ask_parent", "final_answer"})


@dataclass
class EventText:
    """Writes the events of one run as lines, and remembers which words it has shown already.

    `full` shows everything that the journal has of tools and texts. `whole_texts` shows the words of the
    agent whole. `left_out` are types of events that the reader knows otherwise, and `apart` runs whose own
    events are shown, too.
    """

    prefix: str = ""
    full: bool = False
    whole_texts: bool = False
    left_out: frozenset[str] = frozenset()
    apart: Collection[str] = ()
    stream: TextIO | None = None
    last_text: str = ""
    used: str = ""
    has_ended: bool = False
    """Whether the end of the run was shown, with its reason."""

    def lines_of(self, line: str) -> list[str]:
        """Return the lines of a journal's line; none if it has nothing new, or a crash has torn it."""
        event = parse(line)
        try:
            if event is None or self._is_known(event):
                return []
            event = with_local_time(event)
            drawn = list(self._drawn(event))
        except (TypeError, ValueError, AttributeError, OverflowError):
            drawn = [one_line(json.dumps(event, ensure_ascii=False))]  # a journal is data: this one is odd
        return [f"{self.prefix}{line}" for line in self._folded(drawn)]

    def _folded(self, lines: list[str]) -> list[str]:
        """Return lines that a terminal would break, broken so that each piece begins with the prefix."""
        room = line_width() - width_of(without_colours(self.prefix))
        if not self.prefix or room < _LEAST_ROOM or not is_terminal(self.stream or sys.stdout):
            return lines
        return [piece for line in lines for piece in folded(line, room, _INDENT)]

    def _is_known(self, event: Event) -> bool:
        kind = event.get("type")
        if kind == "usage":
            self.used = _used(event)  # the line of the next turn shows it, and the end does
            return not self.full
        if kind in self.left_out:
            return True
        if kind == "subagent_event":
            return event.get("subagentRunId") in self.apart
        if kind in ("tool_call", "tool_result") and event.get("toolName") in _SHOWN_OTHERWISE:
            return not self.full and not event.get("isError")
        return False

    def _drawn(self, event: Event) -> Iterator[str]:
        kind = str(event.get("type"))
        head, *rest = self._text(event, kind).split("\n")
        clock, head = head[:_CLOCK], head[_CLOCK:]
        if kind == "text":
            self.last_text = str(event.get("text", ""))
            if event.get("cut"):
                self.last_text = ""  # the journal has only a part of it
        self.has_ended = self.has_ended or kind == "run_ended"
        colour = _ENDS.get(str(event.get("status"))) if kind == "run_ended" else _COLOURS.get(kind)
        if kind == "tool_result" and (event.get("isError") or event.get("exitCode")):
            colour = "red"
        yield coloured(clock, "grey", self.stream) + coloured(head, colour, self.stream)
        calm = None if kind in ("text", "run_started", "run_ended", "question", "tool_call") else colour
        for line in rest:
            yield coloured(line, calm, self.stream)

    def _text(self, event: Event, kind: str) -> str:
        """Return the escaped text of an event, its first line behind the time."""
        short = escape_lines(render(event))
        head = short.partition("\n")[0]
        if kind == "turn":
            return head + self.used
        if kind == "text" and (self.full or self.whole_texts):
            return head[:_CLOCK] + _indented(str(event.get("text", "")))[len(_INDENT) :]
        if kind == "run_ended" and self._has_shown(event):
            return head
        return self._full(event, kind, head) if self.full else short

    def _has_shown(self, end: Event) -> bool:
        """Whether the words of the agent that were shown last begin with the summary of the run."""
        summary = str(end.get("summary") or "").strip()
        return bool(summary) and not end.get("error") and self.last_text.strip().startswith(summary)

    def _full(self, event: Event, kind: str, head: str) -> str:
        """Return the text with all that the journal has."""
        match kind:
            case "tool_call":
                named = event.get("arguments")
                arguments = named if isinstance(named, dict) else {"": named}
                called = f"{head[:_CLOCK]}→ {one_line(str(event.get('toolName')))}"
                return "\n".join([called, *(_argument(*each) for each in arguments.items())])
            case "tool_result":
                return "\n".join([head, *([_indented(str(event["text"]))] if event.get("text") else [])])
            case "thought":
                return head[:_CLOCK] + _indented(f"~ {event.get('text', '')}")[len(_INDENT) :]
            case "run_started":
                return "\n".join([head, _indented(str(event.get("prompt", "")))])
            case "subagent_event" if event.get("payload") is not None:
                return "\n".join([head, _argument("", event["payload"])])
        return escape_lines(render(event))


def _indented(text: str) -> str:
    return escape_lines(text, _INDENT)


def _argument(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    begin = f"{name}:" if name else ""
    return _indented(f"{begin}\n{text}" if begin and "\n" in text else f"{begin} {text}".strip())


def _used(event: Event) -> str:
    """Return what a run has used so far, for the end of the line of a turn."""
    counts = [event[kind] for kind in TOKENS if isinstance(event.get(kind), int)]
    words = f" · {count(sum(counts), 'token')}" if counts else ""
    cost = event.get("costUsd")
    paid = "" if cost is None else f" · {dollars(one_line(str(cost)))}"
    return f"{words}{paid} so far" if words or paid else ""


def _prefix(agents: dict[str, str], run_id: str) -> str:
    """Return what begins each line of one of several runs: its agent and the last part of its id."""
    names = [f"{cut(one_line(agents[each]), _MOST_NAME)} {each.rpartition('-')[2]}" for each in agents]
    index = list(agents).index(run_id)
    name = padded(names[index], max(map(width_of, names)))
    return coloured(f"{name} │ ", _NAMES[index % len(_NAMES)])


def log_next_to_result() -> EventText:
    """Return the text of a log on stderr, whose reader gets the result on stdout.

    If both are a terminal, it shows the words of the agent whole, and its questions are asked there.
    """
    on_screen = is_terminal(sys.stderr) and is_terminal(sys.stdout)
    asked = frozenset({"question", "reply"}) if has_person() else frozenset[str]()
    return EventText(whole_texts=on_screen, left_out=asked, stream=sys.stderr)


# -- Follow the journals of runs.


_PAGE_LINES = 500


@dataclass
class _Followed:
    """A run, and how far its journal was read."""

    run: RunPaths
    cursor: int
    is_over: bool = False

    def new_lines(self) -> Iterator[str]:
        while True:
            found = page(self.run.events, self.cursor, _PAGE_LINES)
            self.cursor = found.cursor
            yield from found.lines
            if found.at_end or not found.lines:
                return


class LogFollower:
    """Follows one journal each of some runs, and with `tree` also of the runs that they start.

    It watches before it reads, so no line is lost in between. A context manager: its exit ends the watch.
    """

    def __init__(self, session: Session, *, tree: bool = False) -> None:
        self._session = session
        self._tree = tree
        self._runs: dict[str, _Followed] = {}
        self._changed = Wakeup()
        self._watcher = Watcher()

    def __enter__(self) -> "LogFollower":
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.close()

    def add(self, run_id: str, cursor: int) -> None:
        """Follow the journal of a run from a position on."""
        run = self._session.service.store.paths.run(run_id)
        self._runs[run_id] = _Followed(run, cursor)
        relevant = {entry.name for entry in (run.events, run.meta, run.exit)}

        def hear(name: str) -> None:
            if name in relevant:  # reading a run opens its lock file, which must not wake this loop again
                self._changed.set()

        self._watcher.watch(run.directory, hear)

    def until(self, done: Callable[[Observed], bool], show: Show) -> Observed:
        """Show lines until all runs have ended or `done` is true for one; return the first as it was then.

        Lines that were written until then are shown.

        Raises:
            OutputClosed: the reader of stdout has gone.
            UnknownRun, UnreadableMeta, NotAllowed, StorageFailed: as reading a run does.
            ForeignRoot: a run has not ended and its root is foreign.
        """
        with interrupts_kept() as check_interrupt:
            while True:
                self._changed.clear()
                seen = [self._look(each) for each in self._runs.values() if not each.is_over]
                self._add_children()
                lines = ((id_, line) for id_, each in self._runs.items() for line in each.new_lines())
                for run_id, line in lines if len(self._runs) == 1 else in_order(lines):
                    show(run_id, line)
                if any(map(done, seen)) or all(each.is_over for each in self._runs.values()):
                    return seen[0]
                if reader_is_gone():
                    raise OutputClosed
                check_interrupt()
                self._session.service.store.paths.check_ours()  # runs of a foreign root are not waited for
                self._changed.wait(SLOW_POLL_SECONDS)

    def _look(self, followed: _Followed) -> Observed:
        run = followed.run
        observed = self._session.open_run(run.run_id)
        # Nothing more is written if the journal has the end, or if the tree is gone: then reconciliation has
        # closed the journal. For a run of another host the status decides.
        followed.is_over = observed.meta.status.is_terminal and (not observed.live or run.journal_has_ended())
        return observed

    def _add_children(self) -> None:
        store = self._session.service.store
        for run_id in list(self._runs) if self._tree else []:
            for child in store.children_of(run_id):
                if child not in self._runs and store.exists(child):
                    self.add(child, 0)  # looked at in the next round, which an unheard change may delay
                    self._changed.set()
