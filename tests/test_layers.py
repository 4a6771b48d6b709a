"""Imports go down the floors only, and the doors that must open quickly import no more than they need."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from subagent_server.extensions import EXTENSIONS
from tests.helpers.processes import REPOSITORY, run_python

PACKAGE = "subagent_server"
ROOT = REPOSITORY / PACKAGE

GROUND = {"run"}
BELOW_THE_VERBS = {"run", "agents", "process", "sandbox", "worktrees", "settings"}
FLOORS: dict[str, set[str]] = {
    "run": set(),
    "settings": GROUND,
    "agents": GROUND,
    "process": GROUND,
    "sandbox": GROUND,
    "worktrees": GROUND | {"sandbox"},
    "toolbox": GROUND | {"sandbox"},
    "loop": GROUND | {"toolbox"},
    "verbs": BELOW_THE_VERBS,
    "tools": BELOW_THE_VERBS | {"verbs"},
    "extensions": BELOW_THE_VERBS | {"verbs", "toolbox", "loop"},
    "worker": BELOW_THE_VERBS | {"verbs", "tools", "toolbox", "loop", "server"},
    "server": BELOW_THE_VERBS | {"verbs", "tools"},
    "cli": BELOW_THE_VERBS | {"verbs", "tools", "toolbox", "loop", "worker", "server"},
    "__main__": {"cli", "run"},
}
"""By hand from the table of floors: a room, and the rooms (or single modules) it may import beside itself.

The registry of extensions, `extensions/__init__.py`, imports none of our rooms, and every room may ask it.
The `..._command.py` of an extension stands where `cli` stands; what opens a runner for a run
(`..._runner.py`), or plays a script for one, stands where `worker` stands.
"""
ABOVE = re.compile(
    r"extensions\.(\w+\.\w+_(command|runner)|evals\.report|simulator\.played"
    r"|programs\.(boxed_start|child_connections|previous_session))"
)

THIRD_PARTY: dict[str, set[str]] = {
    "run": {
        "pydantic",
        "pydantic_core",
        "filelock",
        "jsonschema",
        "jsonschema_specifications",
        "referencing",
        "watchdog",
    },
    "settings": set(),
}
"""The rooms of the ground floor stay with these."""

STANDARD_LIBRARY_ONLY = ("process/shim.py", "run/paths.py", "settings.py")

MODULES_AFTER = """
    import importlib, sys
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@dataclass(frozen=True)
class Import:
    """That `module` of ours imports `target`, in `line`."""

    module: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    """Return the dotted name of a file below the package, without the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> list[Import]:
    """Return every import of a file, also those inside functions."""
    return list(_imports_of(path))


def _imports_of(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno} is a relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            yield Import(module_name(path), node.lineno, target)


def rooms() -> list[str]:
    found = {path.relative_to(ROOT).with_suffix("").parts[0] for path in ROOT.rglob("*.py")}
    return sorted(found - {"__init__"})


def imports_of_room(room: str) -> list[Import]:
    """Return every import of a room, be it a folder or a single module."""
    files = sorted((ROOT / room).rglob("*.py")) or [ROOT / f"{room}.py"]
    return [found for path in files for found in imports_of(path)]


def is_allowed(room: str, target: str) -> bool:
    """Whether a room may import `target`, given without the package."""
    names, folder = EXTENSIONS.keys(), target.removeprefix("extensions.").partition(".")[0]
    if target.partition(".")[0] == "extensions" and folder not in names:
        return True  # the registry
    allowed = {room, *FLOORS[room], "__version__"}
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


def test_every_room_stands_on_a_floor() -> None:
    assert set(rooms()) <= set(FLOORS), "a new room: give it its floor in docs/architecture.md, then here"


@pytest.mark.parametrize("room", [room for room in FLOORS if room in rooms()])
def test_a_room_imports_only_from_the_floors_below_it(room: str) -> None:
    ours = [found for found in imports_of_room(room) if found.target.split(".")[0] == PACKAGE]
    ours = [found for found in ours if not ABOVE.fullmatch(found.module)]
    wrong = [str(found) for found in ours if not is_allowed(room, found.target.removeprefix(f"{PACKAGE}."))]
    assert wrong == []


def test_the_registry_of_extensions_imports_none_of_our_rooms() -> None:
    found = imports_of(ROOT / "extensions" / "__init__.py")
    assert [str(each) for each in found if each.target.startswith(PACKAGE)] == []


@pytest.mark.parametrize("name", EXTENSIONS)
def test_no_extension_imports_another(name: str) -> None:
    others = tuple(f"{PACKAGE}.extensions.{other}" for other in EXTENSIONS if other != name)
    found = imports_of_room(f"extensions/{name}") if (ROOT / "extensions" / name).is_dir() else []
    assert [str(each) for each in found if each.target.startswith(others)] == []


@pytest.mark.parametrize("room", THIRD_PARTY)
def test_the_ground_floor_needs_nothing_but_pydantic(room: str) -> None:
    wrong = [
        str(found)
        for found in imports_of_room(room)
        if found.target.split(".")[0] not in THIRD_PARTY[room] | {PACKAGE} | sys.stdlib_module_names
    ]
    assert wrong == []


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_what_lives_as_long_as_a_run_stays_on_the_standard_library(name: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})" + MODULES_AFTER.replace("\n    ", "\n")
    done = run_python(code, f"{PACKAGE}.{module_name(ROOT / name)}", flags=["-I", "-S"])
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {PACKAGE, "__main__", *sys.stdlib_module_names}


def test_the_server_starts_without_the_sdk_of_the_model_and_without_the_check_of_schemas() -> None:
    served = [f"{PACKAGE}.{module_name(path)}" for path in sorted((ROOT / "server").rglob("*.py"))]
    assert modules_after(*served, f"{PACKAGE}.cli.serve").isdisjoint({"anthropic", "jsonschema"})


def test_the_library_of_a_foreign_protocol_is_imported_by_its_runners_alone() -> None:
    users = {
        module_name(path)
        for path in ROOT.rglob("*.py")
        if any(found.target.split(".")[0] == "acp" for found in imports_of(path))
    }
    assert users == {f"extensions.programs.{name}" for name in ("acp", "codex", "json_rpc")}


def modules_after(*names: str) -> set[str]:
    """Return the top-level modules that a fresh process has after importing these."""
    done = run_python(MODULES_AFTER, *names)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return set(done.stdout.split())


def lines_with(shape: str) -> list[str]:
    """Return where the package has lines in which this pattern is found."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in ROOT.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(shape, line)
    ]


def test_nobody_opens_the_path_of_what_lies_below_a_runs_root() -> None:
    """Entries are opened below their directory (`run/files.py`); their paths are for messages."""
    opening = r"\.path\.(open|read_|write_|mkdir|unlink|touch|rename|replace|glob|iterdir|stat)\b"
    assert [where for where in lines_with(opening) if not where.startswith("run/files.py:")] == []


def test_no_pattern_has_a_possessive_group() -> None:
    """Before Python 3.11.5 it matches too little (cpython issue 106052): an atomic group says the same."""
    assert lines_with(r"\)([*+?]|\{+[0-9,]+\}+)\+") == []
