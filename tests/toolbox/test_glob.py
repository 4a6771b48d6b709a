"""Finding files by their path."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import GlobTool, PathPattern
from tests.helpers.scale import times
from tests.toolbox.calls import fault_of, text_of

pytestmark = pytest.mark.process


def make(root: Path, *names: str) -> None:
    """Make files, each newer than the one before."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        os.utime(root / name, (1_000_000 + number, 1_000_000 + number))


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    make(
        tmp_path,
        "a.py",
        "b.ts",
        "src/c.py",
        "src/d.tsx",
        "src/deep/er/e.py",
        ".hidden.py",
        ".git/x.py",
        "src/[x].py",
    )
    return tmp_path


@pytest.fixture
def glob(cwd: Path) -> GlobTool:
    return GlobTool(SearchScope(cwd))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", [".hidden.py", "a.py"]),
        ("**/*.py", ["src/[x].py", ".hidden.py", "src/deep/er/e.py", "src/c.py", "a.py"]),
        ("src/**", ["src/[x].py", "src/deep/er/e.py", "src/d.tsx", "src/c.py"]),
        ("src/**/*.py", ["src/[x].py", "src/deep/er/e.py", "src/c.py"]),
        ("**/er/*", ["src/deep/er/e.py"]),
        ("**/deep/**/*.py", ["src/deep/er/e.py"]),
        ("src/*/er/?.py", ["src/deep/er/e.py"]),
        ("*.{py,ts}", [".hidden.py", "b.ts", "a.py"]),
        ("{a,b}.*", ["b.ts", "a.py"]),
        ("{src/{c,d}*,a.py}", ["src/d.tsx", "src/c.py", "a.py"]),
        ("[!a].ts", ["b.ts"]),
        ("[ab].py", ["a.py"]),
        ("src/[[]x].py", ["src/[x].py"]),
        ("./a.py", ["a.py"]),
        ("a.py", ["a.py"]),
        ("**/**/a.py", ["a.py"]),
        (".git/*", []),
        ("*.PY", []),
        ("src", []),
        ("c.py", []),
    ],
)
def test_files_are_found_newest_first(glob: GlobTool, pattern: str, expected: list[str]) -> None:
    text = text_of(glob, pattern=pattern)
    assert text == ("\n".join(expected) or f"No file matches {pattern!r} in the working directory.")


def test_a_pattern_starts_at_its_path(glob: GlobTool, cwd: Path) -> None:
    assert text_of(glob, pattern="*.py", path="src") == "src/[x].py\nsrc/c.py"
    assert text_of(glob, pattern="*.py", path=str(cwd / "src/deep/er")) == "src/deep/er/e.py"
    assert text_of(glob, pattern=f"{cwd}/src/*.py") == "src/[x].py\nsrc/c.py"
    assert text_of(glob, pattern=f"{cwd}/a.py") == "a.py"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"pattern": ""}, "pattern:"),
        ({"pattern": "./"}, "empty"),
        ({"pattern": "*", "path": "gone"}, "nothing at gone"),
        ({"pattern": "*", "path": "a.py"}, "a.py is a file"),
        ({"pattern": "../*"}, "`..`"),
        ({"pattern": "{a,b}" * 10}, "more than 200"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    glob: GlobTool, arguments: dict[str, object], word: str
) -> None:
    sentence = fault_of(glob, **arguments)
    assert word in sentence and sentence.endswith(".")


def test_an_absolute_pattern_begins_with_the_working_directory_whatever_its_name(tmp_path: Path) -> None:
    cwd = tmp_path / "[slug]"
    make(cwd, "a.py", "{b}/c.py")
    glob = GlobTool(SearchScope(cwd))
    assert text_of(glob, pattern=f"{cwd}/*.py") == "a.py"
    assert text_of(glob, pattern=str(cwd)) == "{b}/c.py\na.py"


def test_links_are_not_found(cwd: Path, glob: GlobTool) -> None:
    (cwd / "in.md").symlink_to("src/c.py")
    (cwd / "out.md").symlink_to("/etc/passwd")
    (cwd / "gone.md").symlink_to("nowhere")
    (cwd / "loop.md").symlink_to("loop.md")
    (cwd / "dir.md").symlink_to("src")
    assert text_of(glob, pattern="*.md").startswith("No file matches")
    assert text_of(glob, pattern="dir.md/*").startswith("No file matches")


def test_the_hundred_newest_are_listed_with_the_number_of_others(tmp_path: Path) -> None:
    make(tmp_path, *(f"f{n:03}" for n in range(250)))
    lines = text_of(GlobTool(SearchScope(tmp_path)), pattern="*").split("\n")
    assert lines[:100] == [f"f{n:03}" for n in range(249, 149, -1)]
    assert lines[100:] == ["[the 100 newest are shown, and 150 more match: narrow the pattern]"]


def test_a_huge_tree_is_walked_within_bounds_and_that_is_said(tmp_path: Path) -> None:
    make(tmp_path, *(f"d{n}/f{m}" for n in range(20) for m in range(20)))
    text = text_of(GlobTool(SearchScope(tmp_path), most_files=100), pattern="**/f*")
    assert "[stopped after looking at 100 files: files may be missing" in text
    assert text.startswith("d") and text.count("/f") == 100
    assert "stopped after 0 s" in text_of(GlobTool(SearchScope(tmp_path), seconds=0.0), pattern="**/f1")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("pattern", "path"), [("*a" * 60 + "b", "a" * 200), ("**/a/" * 20 + "b", "a/" * 60)])
def test_a_pattern_made_to_be_slow_is_fast(pattern: str, path: str) -> None:
    assert not PathPattern(pattern).matches(path)


def test_ignored_files_are_left_out_unless_they_are_asked_for(tmp_path: Path) -> None:
    make(tmp_path, "src/a.py", "src/b.py", "build/c.py", "node_modules/m/d.py", ".hidden/e.py")
    (tmp_path / ".gitignore").write_text("node_modules/\n/build\n", encoding="utf-8")
    (tmp_path / "src/.ignore").write_text("b.py\n", encoding="utf-8")
    glob = GlobTool(SearchScope(tmp_path))
    assert text_of(glob, pattern="**/*.py") == ".hidden/e.py\nsrc/a.py"
    assert text_of(glob, pattern="build/*").startswith("No file matches")
    every = text_of(glob, pattern="**/*.py", includeIgnored=True)
    assert sorted(every.split("\n")) == [
        ".hidden/e.py", "build/c.py", "node_modules/m/d.py", "src/a.py", "src/b.py",
    ]  # fmt: skip
    assert text_of(glob, pattern="build/*", includeIgnored=True) == "build/c.py"


def test_an_ignore_file_above_the_working_directory_counts_in_a_repository_alone(tmp_path: Path) -> None:
    make(tmp_path, "work/a.py", "work/b.py")
    (tmp_path / ".gitignore").write_text("*\n", encoding="utf-8")
    (tmp_path / "work/.gitignore").write_text("b.py\n", encoding="utf-8")
    glob = GlobTool(SearchScope(tmp_path / "work"))
    assert "a.py" in text_of(glob, pattern="*.py").split("\n")
    (tmp_path / ".git").mkdir()
    assert text_of(glob, pattern="*.py").startswith("No file matches")


def test_an_ignore_file_that_cannot_be_read_to_its_end_holds_a_search_up_no_longer_than_its_time(
    tmp_path: Path,
) -> None:
    make(tmp_path, "a.py")
    os.mkfifo(tmp_path / ".gitignore")
    assert "stopped after 0.5 s" in text_of(GlobTool(SearchScope(tmp_path), seconds=0.5), pattern="*")
    assert text_of(GlobTool(SearchScope(tmp_path)), pattern="*", includeIgnored=True) == "a.py"


NAMES = ["a", "ab.c", "[x]", "{a,b}", "ü.c", "a b", "-a", "#a", "!a", "A.C", "a*", "back\\slash"]
_PARTS = st.one_of(
    st.sampled_from(
        [*NAMES, "**", "*", "?", "*.c", "[!a]*", "[]a]*", "[a", "a?*", "{a,ab.c}", "[[]x]", "[a-c]*"]
    ),
    st.text(alphabet="ab.c*?[]!-{},\\ ü#", min_size=1, max_size=5),
)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with odd names, at two depths."""
    root = tmp_path_factory.mktemp("names")
    make(root, *(f"{directory}-/{name}" for directory in NAMES for name in NAMES), *NAMES)
    return root


@given(st.lists(_PARTS, min_size=1, max_size=3).map("/".join))
@settings(max_examples=times(25, 80), deadline=None)
def test_a_pattern_finds_every_path_that_it_matches(names: Path, pattern: str) -> None:
    try:
        wanted = PathPattern(pattern)
    except ValueError:
        return
    paths = [str(file.relative_to(names)) for file in names.rglob("*") if file.is_file()]
    found = text_of(GlobTool(SearchScope(names)), pattern=pattern).split("\n")
    matching = {path for path in paths if wanted.matches(path)}
    if len(matching) > 100:
        assert found[-1].startswith("[the 100 newest")
    else:
        assert set(found) == (matching or {f"No file matches {pattern!r} in the working directory."})
