"""The documents agree with the code: files, rooms, words, limits, links and commands that they name exist."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from subagent_server.cli.console.app import verbs
from subagent_server.extensions.programs.program_checks import KNOWN_PROGRAMS
from subagent_server.run.journal import RENDERERS
from subagent_server.tools.tool_table import LIFECYCLE_TOOLS, TOOLS
from subagent_server.verbs.views import MessageView, RunView
from tests.helpers.processes import REPOSITORY
from tests.mutants import TABLE, read_table

PACKAGE = REPOSITORY / "subagent_server"
ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
NAMES = [str(path.relative_to(REPOSITORY)) for path in DOCUMENTS]
HISTORY = {"CHANGELOG.md"}
"""It may name files of earlier versions."""
FOREIGN_FILES = {"conftest.py"}
"""Files of users' projects that the documents name."""

WORDS = (
    *("run", "agent", "parent", "child", "tree", "door", "verb", "room", "runs root", "starter"),
    *("shim", "worker", "zygote", "plain start", "warm start", "slot", "ticket", "mark"),
    *("reconcile", "sweep", "transcript", "journal", "view", "row", "run context", "runner", "failpoint"),
)
RETIRED_WORDS = re.compile(r"\b(keeper|newborn|leash|amid|whoever|of ours|warm process|is none)\b", re.I)
EVENTS = "`events.jsonl` and `run.log`"
LEAST_ROWS_OF_CHANGES = 25
TARGETS = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.M))
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}

_PYTHON_FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CONSTANT = re.compile(r"`([\w/]+\.py)`|`([A-Z][A-Z_]+)`")
_FIGURE = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?: (?:MiB|KiB|%))?")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def section(path: Path, title: str) -> str:
    """Return the text below a heading, up to the next heading of this level or a higher one."""
    found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^\1 |^## |\Z)", text_of(path), re.M | re.S)
    assert found, f"{path.name} has no section {title}"
    return found[2]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables in a text, without their headers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [number for number, row in enumerate(cells) if all(set(cell) <= {"-"} and cell for cell in row)]
    headers = {number - 1 for number in rules} | set(rules)
    return [row for number, row in enumerate(cells) if number not in headers]


def exists(name: str) -> bool:
    """Whether a file that a document names is in the package, in the repository or beside another module."""
    if (PACKAGE / name).is_file() or (REPOSITORY / name).is_file():
        return True
    return "/" not in name and any(PACKAGE.rglob(name))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HISTORY])
def test_every_module_that_a_document_names_exists(name: str) -> None:
    named = set(_PYTHON_FILE.findall(text_of(REPOSITORY / name))) - FOREIGN_FILES
    assert sorted(each for each in named if not exists(each)) == []


def test_the_table_of_rooms_has_every_room_of_the_package_and_no_other() -> None:
    named = {row[0].strip("`").rstrip("/") for row in rows(section(ARCHITECTURE, "Rooms"))}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert named == folders | modules


def test_every_room_stands_on_one_floor() -> None:
    named = re.findall(r"`(\w+)`", " ".join(row[1] for row in rows(section(ARCHITECTURE, "Floors"))))
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    rooms |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(rooms)


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_explains_each_word_of_the_house(word: str) -> None:
    explained = [
        part.strip() for row in rows(section(ARCHITECTURE, "Glossary")) for part in row[0].split(",")
    ]
    assert word in explained


def test_each_change_of_the_table_names_a_file_that_exists() -> None:
    changes = rows(section(ARCHITECTURE, "To change X, open Y"))
    assert len(changes) >= LEAST_ROWS_OF_CHANGES
    for change, place in changes:
        paths = [path for path in re.findall(r"`([\w./-]+)`", place) if "/" in path or path.endswith(".py")]
        wrong = [path for path in paths if not ((PACKAGE / path).exists() or exists(path))]
        assert wrong == [] and (paths or "](" in place), f"{change}: {wrong}"


def forms(value: float) -> set[str]:
    """Return the ways in which the table of limits may write the value of a constant."""
    whole = int(value)
    written = {f"{value:g}", f"{value * 100:g} %"}
    if whole == value:
        written.add(f"{whole:,}")
    written |= {
        f"{whole // size} {unit}" for unit, size in UNITS.items() if whole == value and not whole % size
    }
    return written


def constants(cell: str) -> Iterator[float]:
    """Yield the values of the constants that a cell of the table of limits names, by their modules."""
    module = None
    for path, constant in _CONSTANT.findall(cell):
        if path:
            module = importlib.import_module(f"subagent_server.{path.removesuffix('.py').replace('/', '.')}")
        else:
            yield float(getattr(module, constant))


@pytest.mark.parametrize(
    "row", rows(section(REPOSITORY / "docs" / "limits.md", "Numbers")), ids=lambda r: r[0]
)
def test_each_limit_of_the_table_is_the_constant_that_it_names(row: list[str]) -> None:
    _, bound, cell = row
    figures = set(_FIGURE.findall(re.sub(r"429 and 529|Claude 4\.5", "", bound)))
    values = list(constants(cell))
    assert values, f"{cell} names no constant"
    for value in values:
        assert figures & forms(value), f"{bound} lacks {value:g}"
    unexplained = {figure for figure in figures if not any(figure in forms(value) for value in values)}
    assert unexplained == set()


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a document, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(path), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_the_files_has_every_event_of_the_journal() -> None:
    events = {cell for row in rows(section(REPOSITORY / "docs/meta-file.md", EVENTS)) for cell in row[:1]}
    assert {kind for cell in events for kind in re.findall(r"`(\w+)`", cell)} == {*RENDERERS}


def test_the_page_of_runners_has_the_oldest_version_of_each_program() -> None:
    page = text_of(REPOSITORY / "docs" / "runners.md")
    oldest = [".".join(map(str, program.oldest)) for program in KNOWN_PROGRAMS.values()]
    assert [version for version in oldest if version not in page] == []


def test_the_page_of_tools_has_every_tool_and_every_field_of_a_view() -> None:
    fields = [*RunView.model_json_schema()["properties"], *MessageView.model_json_schema()["properties"]]
    page = text_of(REPOSITORY / "docs" / "tools.md")
    known = [*fields, *(tool.name for tool in (*TOOLS, *LIFECYCLE_TOOLS))]
    assert [name for name in known if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_document_lead_somewhere(name: str) -> None:
    document = REPOSITORY / name
    for link in _LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text_of(document), flags=re.S)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def commands(text: str) -> Iterator[str]:
    """Yield the verb of every `subagent` command in code, but not in worked examples, which add verbs."""
    text = re.sub(r"^```(?:python|diff)\n# \S+/.*?^```$", "", text, flags=re.M | re.S)
    code = [*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^(?:    |\$ )?(.*\bsubagent .*)$", text, re.M)]
    for piece in code:
        yield from re.findall(r"^(?:\$ )?subagent ((?!-)[a-z][\w-]*)", piece.strip())


@pytest.mark.parametrize("name", NAMES)
def test_the_verbs_that_a_document_calls_exist(name: str) -> None:
    assert {verb for verb in commands(text_of(REPOSITORY / name)) if verb not in verbs()} == set()


@pytest.mark.parametrize("name", NAMES)
def test_the_make_targets_that_a_document_calls_exist(name: str) -> None:
    called = set(re.findall(r"(?:^    |`)make ([a-z][\w-]*)", text_of(REPOSITORY / name), re.M))
    assert called - TARGETS == set()


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_is_yaml_and_calls_targets_that_exist(path: Path) -> None:
    text = text_of(path)
    assert isinstance(yaml.safe_load(text), dict)
    assert set(re.findall(r"run: make ([\w-]+)", text)) - TARGETS == set()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HISTORY])
def test_a_document_uses_the_words_of_the_glossary(name: str) -> None:
    assert sorted({found[0] for found in RETIRED_WORDS.finditer(text_of(REPOSITORY / name))}) == []


def test_the_index_leads_to_every_page_of_the_documents() -> None:
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    linked = set(_LINK.findall(text_of(REPOSITORY / "docs" / "README.md")))
    assert pages - linked == set(), "docs/README.md does not lead to these pages: give each a line there"


def test_the_first_page_fits_a_hundred_lines() -> None:
    assert len(text_of(REPOSITORY / "README.md").splitlines()) <= 100


def test_each_mutant_is_an_edit_of_one_line_of_the_package() -> None:
    mutants = list(read_table(text_of(TABLE)))
    gone = [str(each) for each in mutants if text_of(PACKAGE / each.file).count(each.snippet) != 1]
    assert len(mutants) >= 100 and gone == []
