"""The worked examples of CONTRIBUTING.md work: applied to a copy of the repository, their tests pass."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from venv import EnvBuilder

import pytest

from tests.helpers.processes import REPOSITORY

BOUND = 540.0
FLOORS = "tests/test_layers.py::test_a_room_imports_only_from_the_floors_below_it"
_BLOCK = re.compile(r"^```(python|diff)\n# (\S+)\n(.*?)^```$", re.M | re.S)
_COPIED = ("subagent_server", "tests", "pyproject.toml")
_LEFT_OUT = shutil.ignore_patterns("clients", "browser", "soak", "fuzz")  # compiled files save seconds


def apply_change(path: Path, lines: list[str]) -> None:
    """Change a file by a difference without line numbers: its old lines must be there once."""
    before = "\n" + "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
    after = "\n" + "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path.name} has these lines {text.count(before)} times:\n{before}"
    path.write_text(text.replace(before, after), encoding="utf-8")


def installed(copy: Path) -> Path:
    """Return the Python of an environment with the package of the copy, and what it depends on."""
    EnvBuilder(symlinks=True).create(copy / "venv")
    (packages,) = (copy / "venv").glob("lib/python*/site-packages")
    (packages / "copy.pth").write_text(f"{copy}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return copy / "venv" / "bin" / "python"


@pytest.mark.timeout(600)
def test_the_worked_examples_of_contributing_pass_their_own_tests(tmp_path: Path) -> None:
    for name in _COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, symlinks=True, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, tmp_path)
    examples = _BLOCK.findall((REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    tests = [name for kind, name, _ in examples if kind == "python" and name.startswith("tests/")]
    for kind, name, text in examples:
        path = tmp_path / name
        if kind == "diff":
            apply_change(path, text.splitlines())
        else:
            assert not path.exists(), f"{name} is there already: choose another name in CONTRIBUTING.md"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    assert len(tests) == 3
    done = subprocess.run(
        [installed(tmp_path), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, FLOORS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
