"""The frame of the live screen: its rows as lines of exactly the width of the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from subagent_server.cli.console.colours import coloured, has_colours
from subagent_server.cli.console.row_cells import age_cell, what_cell
from subagent_server.cli.console.text import cut, look_of, one_line, padded, width_of, wrapped
from subagent_server.cli.console.trees import GROUPS, group_of
from subagent_server.domain.figures import least_mark
from subagent_server.domain.money import dollars
from subagent_server.service.trees import Node, TreeRow
from subagent_server.store.paths import RootPaths

WIDE = 100
NARROW = 72
_REVERSE, _PLAIN = "\x1b[7m", "\x1b[0m"
_KEYS = "↑↓ move  enter log  a answer  s stop  o open  / filter  ? help  q quit"
_SHORT_KEYS = "enter log  a answer  s stop  / filter  ? help  q quit"
_HELP = (
    ("up, down, j, k", "move; page up and page down, home and end go further"),
    ("enter, l", "look at the log of the run; q goes back"),
    ("a", "answer its question"),
    ("s", "stop it and all that it has started; asks first"),
    ("o", "open everything about it in your pager"),
    ("/", "show only runs with these words; escape shows all"),
    ("q, Ctrl-C", "leave; the runs go on"),
    ("Ctrl-Z", "put aside; fg comes back"),
)
_HELP_END = "Nothing here changes a run unless you answer or stop it."
_KEY_WIDTH = 16
_LEAST_HELP = 20


@dataclass(frozen=True)
class Entry:
    """A line of the list: a run with its depth in its tree, or the heading of a group."""

    group: str
    depth: int = 0
    row: TreeRow | None = None


@dataclass
class View:
    """The state of the screen besides the runs: selection, filter, input, remark, page."""

    selected: str | None = None
    top: int = 0
    wanted: str = ""
    prompt: str | None = None
    """A question or input in the last line, in place of the keys."""
    remark: str = ""
    page: list[str] | None = field(default=None)
    """The lines of a page over the list: a log, or help."""
    title: str = ""


def help_lines(width: int) -> list[str]:
    """Return what the keys do, in lines that fit the width."""
    room = max(_LEAST_HELP, width - _KEY_WIDTH - 2)
    lines: list[str] = []
    for keys, does in _HELP:
        first, *rest = wrapped(does, room)
        lines += [f"  {keys:<{_KEY_WIDTH}}{first}", *(f"  {'':<{_KEY_WIDTH}}{line}" for line in rest)]
    return [*lines, "", *(f"  {line}" for line in wrapped(_HELP_END, max(_LEAST_HELP, width - 2)))]


def entries_of(trees: Sequence[Node], wanted: str) -> list[Entry]:
    """Return the lines of the list: groups of trees; with `wanted`, only runs that have these words."""
    entries: list[Entry] = []
    for name in GROUPS:
        group = [
            Entry(name, depth, row)
            for tree in trees
            if group_of(tree) == name
            for depth, row in tree.walk()
            if _fits(row, wanted)
        ]
        entries += [Entry(name), *group] if group else []
    return entries


def _fits(row: TreeRow, wanted: str) -> bool:
    run = row.run
    look = look_of(run.status, run.pending_questions, run.live)
    text = " ".join(filter(None, (run.run_id, run.agent, run.label, run.summary, look.word))).casefold()
    return all(word in text for word in wanted.casefold().split())


def frame(root: RootPaths, entries: Sequence[Entry], view: View, size: tuple[int, int]) -> list[str]:
    """Return the lines of the screen, as many as it has, each at most as wide."""
    width, height = size
    room = max(1, height - 3)
    if view.page is not None:
        body = [cut(line, width) if "\x1b" not in line else line for line in view.page[view.top :][:room]]
        head = [_bar(view.title, width), ""]
    else:
        head = [_bar(_summary(entries, view), width), _cells_line(_HEADER, width, colour="bold")]
        body = _body(root, entries, view, width, room)
    lines = [*head, *body, *[""] * (room - len(body)), _last_line(view, width)]
    return lines[: height - 1] + lines[-1:] if len(lines) > height else lines


def _body(root: RootPaths, entries: Sequence[Entry], view: View, width: int, room: int) -> list[str]:
    if not entries:
        none = "No run has these words: escape shows all." if view.wanted else "No runs yet."
        return [cut(none, width)]
    place = next((n for n, entry in enumerate(entries) if _id(entry) == view.selected), 0)
    first = 0 if place <= 1 else place  # the heading of the first group stays in sight
    view.top = max(0, min(view.top, first, len(entries) - room), place - room + 1)
    return [
        _line(root, entry, width, is_selected=_id(entry) == view.selected)
        for entry in entries[view.top : view.top + room]
    ]


def _id(entry: Entry) -> str | None:
    return None if entry.row is None else entry.row.run.run_id


_HEADER = ("", "RUN", "AGENT", "AGE", "COST", "WHAT")


def _line(root: RootPaths, entry: Entry, width: int, *, is_selected: bool) -> str:
    if entry.row is None:
        return coloured(cut(entry.group, width), "bold")
    run = entry.row.run
    look = look_of(run.status, run.pending_questions, run.live)
    branch = "" if entry.depth == 0 else f"{'  ' * min(entry.depth - 1, 3)}└ "
    usage = entry.row.with_descendants
    cells = (
        look.text,
        run.run_id.rpartition("-")[2],
        branch + one_line(run.agent or ""),
        age_cell(run),
        "" if usage.cost_usd is None else least_mark(usage.at_least, "costUsd") + dollars(usage.cost_usd),
        what_cell(root, run),
    )
    return _cells_line(cells, width, colour=look.colour, is_selected=is_selected)


def _cells_line(cells: Sequence[str], width: int, *, colour: str, is_selected: bool = False) -> str:
    """Return a row in columns that fit the width: narrow screens have the mark of a status alone."""
    status, run, agent, age, cost, what = cells
    state = 11 if width >= NARROW else 1
    agent_width = 18 if width >= WIDE else 12
    first = padded(status if state > 1 else status[:1], state)
    middle = "  ".join(
        [padded(run, 6), padded(agent, agent_width), f"{cut(age, 4):>4}", f"{cut(cost, 7):>7}"]
    )
    begin = f"{'▸ ' if is_selected else '  '}{first}"
    rest = f"  {middle}  {what}"
    whole = cut(begin + rest, width)
    if colour == "bold":
        return coloured(whole, "bold")
    if is_selected and has_colours():
        return f"{_REVERSE}{padded(whole, width)}{_PLAIN}"
    return whole.replace(first.rstrip(), coloured(first.rstrip(), colour), 1)


def _summary(entries: Sequence[Entry], view: View) -> str:
    counts = {name: sum(each.group == name and each.row is not None for each in entries) for name in GROUPS}
    words = [f"{number} {name}" for name, number in counts.items() if number] or ["no runs"]
    shown = f"  /{one_line(view.wanted)}" if view.wanted and view.prompt is None else ""
    return f"subagent  {' · '.join(words)}{shown}"


def _bar(text: str, width: int) -> str:
    return coloured(cut(one_line(text), width), "bold")


def _last_line(view: View, width: int) -> str:
    if view.prompt is not None:
        return cut(one_line(view.prompt), width)
    if view.remark:
        return cut(one_line(view.remark), width)
    if view.page is not None:
        return coloured(cut("↑↓ scroll  end follow  q back", width), "grey")
    return coloured(cut(_KEYS if width >= width_of(_KEYS) else _SHORT_KEYS, width), "grey")
