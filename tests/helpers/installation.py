"""An installation of this program that is upgraded while it is in use: a virtual environment of its own.

What the program depends on is that of the tests. An upgrade goes as pip's does: the old files are put aside,
the new ones come one by one, the record of the version last, and then what was put aside is removed. All
files of a version are marked with it, and refuse to be imported into a program of another: no process may
ever be half of one and half of the other.
"""

import ast
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from venv import EnvBuilder

from tests.helpers.processes import REPOSITORY

_NAME = "subagent_server"
_VERSION = re.compile(rb'^__version__ = ".*"$', re.MULTILINE)
_UNMARKED = re.compile(r"process/shim\.py|sandbox/landlock\.py|extensions/code_mode/inside\.py")
"""Run by its path, or as a text in the programs of code mode: there the package may not be found."""
_MARK = """from subagent_server import __version__ as _whole
if _whole != "{version}":
    raise ImportError(f"{{__name__}} is of {version}, and the program is {{_whole}}", name=__name__)
"""


class Installation:
    """The program, installed in `home`, an empty directory that is made.

    Without marks it cannot be upgraded, and what is compiled here already saves it three seconds.
    """

    def __init__(self, home: Path, *, marked: bool = True) -> None:
        EnvBuilder(symlinks=True).create(home)
        self.program = [str(home / "bin" / "python"), "-m", _NAME]
        self.number = 0
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self._packages = home / "lib" / name / "site-packages"
        (self._packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        source = REPOSITORY / _NAME
        files = sorted(
            each for each in source.rglob("*") if each.is_file() and "__pycache__" not in each.parts
        )
        self._files = {str(each.relative_to(source)): each.read_bytes() for each in files}
        if marked:
            self._write(self._version(0), iter(()))
        else:
            shutil.copytree(source, self._packages / _NAME)
            self._write_record(self._version(0))

    @property
    def version(self) -> str:
        """The version that was installed last as a whole."""
        return self._version(self.number)

    def is_since(self, version: str, other: str) -> bool:
        """Whether a version is `other` or one that came after it."""
        return int(version.rpartition("post")[2]) >= int(other.rpartition("post")[2])

    def add(self, name: str, text: str) -> None:
        """Add a file to the installed package, or write one of its files anew."""
        (self._packages / _NAME / name).write_text(text, encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        """Change a text that stands once in a file of the installed package."""
        text = (self._packages / _NAME / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        self.add(name, text.replace(old, new))

    def remove_extension(self, name: str) -> None:
        """Delete the folder of an extension, and its entry in the registry."""
        shutil.rmtree(self._packages / _NAME / "extensions" / name)
        registry = self._packages / _NAME / "extensions" / "__init__.py"
        text = registry.read_text(encoding="utf-8")
        (table,) = [
            node.value
            for node in ast.parse(text).body
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "EXTENSIONS"
        ]
        assert isinstance(table, ast.Dict)
        (at,) = [n for n, key in enumerate(table.keys) if isinstance(key, ast.Constant) and key.value == name]
        key, value = table.keys[at], table.values[at]
        assert key is not None
        lines = text.splitlines(keepends=True)
        del lines[key.lineno - 1 : value.end_lineno]
        registry.write_text("".join(lines), encoding="utf-8")

    def upgrade(self, halfway: Callable[[], object] = lambda: None, part: float = 0.5) -> None:
        """Install the next version; call `halfway` when this part of its files is there."""
        version = self._version(self.number + 1)
        aside = []
        for old in (self._packages / _NAME, self._record(self.version)):
            aside.append(old.with_name(f"~{old.name[1:]}"))
            old.rename(aside[-1])
        self._write(version, _called_at(halfway, round(part * len(self._files))))
        self.number += 1
        for each in aside:
            shutil.rmtree(each)

    def _write(self, version: str, between: Iterator[None]) -> None:
        for name, content in self._files.items():
            next(between, None)
            place = self._packages / _NAME / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(_marked(name, content, version))
        self._write_record(version)

    def _write_record(self, version: str) -> None:
        record = self._record(version)
        record.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: subagent-server\nVersion: {version}\n"
        (record / "METADATA").write_text(metadata, encoding="utf-8")
        (record / "INSTALLER").write_text("pip\n", encoding="utf-8")

    def _record(self, version: str) -> Path:
        return self._packages / f"{_NAME}-{version}.dist-info"

    def _version(self, number: int) -> str:
        return f"0.1.0.post{number}"


def _called_at(call: Callable[[], object], number: int) -> Iterator[None]:
    """Yield, and call once before the step of this number."""
    for _ in range(number):
        yield
    call()
    yield


def _marked(name: str, content: bytes, version: str) -> bytes:
    if name == "__init__.py":
        marked, times = _VERSION.subn(f'__version__ = "{version}"'.encode(), content)
        assert times == 1, "the package says its version once"
        return marked
    if not name.endswith(".py") or _UNMARKED.fullmatch(name):
        return content
    lines = content.splitlines(keepends=True)
    at = _first_statement(content)
    return b"".join([*lines[:at], _MARK.format(version=version).encode(), *lines[at:]])


@cache
def _first_statement(content: bytes) -> int:
    """Return before which line a module does anything, with its docstring left behind."""
    body = ast.parse(content).body
    opening = [
        each for each in body[:1] if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    ]
    return opening[0].end_lineno or 0 if opening else 0
