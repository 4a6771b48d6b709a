"""Searching the lines of files."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import GrepTool
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.files import write_program
from tests.toolbox.calls import PATIENCE_SECONDS, fault_of, text_of
from tests.toolbox.trap import SLOW_PATTERN, set_trap

pytestmark = pytest.mark.process


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    files = {
        "a.py": "import os\nneedle one\nthree\nfour\nfive\nNeedle six\n",
        "src/b.ts": "needle\nneedle\n",
        "src/deep/c.py": "no end, needle",
        "src/deep/d.md": "nothing\n",
        ".hidden": "needle hidden\n",
        ".git/config": "needle in git\n",
        "src/.git/config": "needle in git\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "program").write_bytes(b"needle\0needle\n")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


@pytest.fixture
def grep(cwd: Path) -> GrepTool:
    return GrepTool(SearchScope(cwd))


def test_its_definition_has_its_arguments(grep: GrepTool) -> None:
    definition = grep.definition()
    assert definition["name"] == "grep"
    assert definition["input_schema"]["required"] == ["pattern"]
    assert set(definition["input_schema"]["properties"]) == {
        "pattern", "path", "glob", "outputMode", "context", "ignoreCase", "includeIgnored", "limit",
    }  # fmt: skip


def test_context_lines_have_a_mark_of_their_own(grep: GrepTool) -> None:
    text = text_of(grep, pattern="[Nn]eedle", path="a.py", outputMode="content", context=1)
    assert text == "a.py-1-import os\na.py:2:needle one\na.py-3-three\n--\na.py-5-five\na.py:6:Needle six"
    text = text_of(grep, pattern="[Nn]eedle", path="a.py", outputMode="content", context=2)
    assert text.split("\n")[1:5] == ["a.py:2:needle one", "a.py-3-three", "a.py-4-four", "a.py-5-five"]
    assert "--" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ".hidden\na.py\nsrc/b.ts\nsrc/deep/c.py"),
        ({"outputMode": "content", "path": "src/b.ts"}, "src/b.ts:1:needle\nsrc/b.ts:2:needle"),
        ({"outputMode": "count", "path": "src"}, "src/b.ts:2\nsrc/deep/c.py:1"),
        ({"outputMode": "count", "path": "a.py", "ignoreCase": True}, "a.py:2"),
        ({"glob": "*.rs"}, "No match for 'needle' in the working directory."),
        ({"path": "program"}, "No match for 'needle' in program."),
        ({"glob": "*.py"}, "a.py\nsrc/deep/c.py"),
        ({"glob": "*.{py,ts}"}, "a.py\nsrc/b.ts\nsrc/deep/c.py"),
        ({"glob": "src/**"}, "src/b.ts\nsrc/deep/c.py"),
        ({"glob": "src/*"}, "src/b.ts"),
        ({"glob": "**/*.ts"}, "src/b.ts"),
        ({"glob": "[ab].*"}, "a.py\nsrc/b.ts"),
        ({"glob": "./src/*.ts"}, "src/b.ts"),
        ({"glob": "deep/*.py", "path": "src"}, "src/deep/c.py"),
        ({"glob": "src/deep/*.py", "path": "src"}, "src/deep/c.py"),
        ({"path": "src/deep/c.py"}, "src/deep/c.py"),
        ({"path": None, "glob": None, "outputMode": None, "limit": 1}, ".hidden"),
    ],
)
def test_path_and_glob_narrow_the_search(grep: GrepTool, arguments: dict[str, object], expected: str) -> None:
    assert text_of(grep, pattern="needle", **arguments).split("\n[")[0] == expected


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"pattern": ""}, "pattern:"),
        ({"pattern": "x", "path": "gone"}, "nothing at gone"),
        ({"pattern": "x", "path": "fifo"}, "a FIFO"),
        ({"pattern": "x", "outputMode": "lines"}, "'files', 'content' or 'count'"),
        ({"pattern": "x", "limit": 0}, "limit:"),
        ({"pattern": "x", "context": -1}, "context:"),
        ({"pattern": "x", "glob": "../*.py"}, "`..`"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    grep: GrepTool, arguments: dict[str, object], word: str
) -> None:
    sentence = fault_of(grep, **arguments)
    assert word in sentence and sentence.endswith(".")


def test_patterns_are_matched_line_by_line(grep: GrepTool, cwd: Path) -> None:
    (cwd / "t").write_bytes("\ufeffna\u00efve caf\u00e9\r\nx1y22\r\n\r\nend".encode())
    for pattern, expected in [
        (r"^na\w+ve caf\w$", "t:1:naïve café"),
        (r"\d{2}$", "t:2:x1y22"),
        (r"(?i)X(?P<n>1)", "t:2:x1y22"),
        (r"^$", "t:3:"),
        (r"nd[^q]", "No match"),
        (r"caf..", "No match"),
    ]:
        assert text_of(grep, pattern=pattern, path="t", outputMode="content").startswith(expected)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x(?=1)", "look-around, including look-ahead and look-behind, is not supported (at character 2)."),
        ("(?<!y)x", "look-around, including look-ahead and look-behind, is not supported (at character 1)."),
        (r"(a)\1", "backreferences are not supported (at character 4)."),
        ("abc(d", "unclosed group."),
        ("é[a", "unclosed character class (at character 2)."),
        ("f() {", "repetition quantifier expects a valid decimal (at character 6)."),
        ("a\\", "nothing follows the backslash at its end (at character 2)."),
        ("a\nb", "each line is searched by itself, so a pattern cannot hold a line end."),
        (r"a\nb", "each line is searched by itself, so a pattern cannot hold a line end."),
        ("a\0", "it holds a NUL character, and files with such are binary."),
        ("(a{999}){999}", "it is too large."),
        ("a" * 200_000, "it has more than 100,000 bytes."),
    ],
)
def test_the_fault_of_a_pattern_is_named_in_one_sentence(grep: GrepTool, pattern: str, expected: str) -> None:
    assert fault_of(grep, pattern=pattern).endswith(f" cannot be searched for: {expected}")
    assert "\n" not in fault_of(grep, pattern=pattern)


def test_a_long_line_is_cut_around_its_match(grep: GrepTool, cwd: Path) -> None:
    (cwd / "min.js").write_text("x" * 90_000 + "FOUND" + "y" * 90_000, encoding="utf-8")
    text = text_of(grep, pattern="FOUND", outputMode="content")
    assert "FOUND" in text
    assert len(text) < 600


def test_the_limit_counts_matches_and_says_that_there_are_more(grep: GrepTool, cwd: Path) -> None:
    (cwd / "many").write_text("hit\n" * 1000, encoding="utf-8")
    text = text_of(grep, pattern="hit", outputMode="content", limit=3)
    assert text.split("\n")[:3] == ["many:1:hit", "many:2:hit", "many:3:hit"]
    assert text.split("\n")[3:] == ["[only the first 3 are shown: raise `limit` or narrow the search]"]
    exactly = text_of(grep, pattern="needle", limit=4)
    assert "[" not in exactly
    assert text_of(grep, pattern="hit", outputMode="content", limit=3, path="many").count("many:") == 3


def test_a_result_is_bounded_whatever_the_limit(grep: GrepTool, cwd: Path) -> None:
    (cwd / "many").write_text(("hit " * 50 + "\n") * 10_000, encoding="utf-8")
    text = text_of(grep, pattern="hit", outputMode="content", limit=10_000)
    assert len(text) < 31_000
    assert text.endswith("narrow the search]")


def test_a_search_that_takes_too_long_is_ended_and_its_results_so_far_are_kept(cwd: Path) -> None:
    set_trap(cwd)
    text = text_of(GrepTool(SearchScope(cwd), seconds=1.5), pattern=SLOW_PATTERN, outputMode="content")
    assert text.startswith("a_first:1:aab\n[stopped after 1.5 s")


def test_searches_run_at_the_same_time(cwd: Path) -> None:
    set_trap(cwd)

    async def main() -> list[ToolResult]:
        slow = asyncio.create_task(GrepTool(SearchScope(cwd), seconds=120.0).call({"pattern": SLOW_PATTERN}))
        quick = GrepTool(SearchScope(cwd))
        results = await asyncio.gather(*(quick.call({"pattern": pattern}) for pattern in ("needle", "three")))
        assert not slow.done()
        slow.cancel()
        await asyncio.wait([slow])
        return results

    needle, three = asyncio.run(main())
    assert "a.py" in needle.text and three.text == "a.py"


@pytest.mark.parametrize(
    ("after_seconds", "box"), [(0.0, None), (0.4, None), (0.4, "sleep 600")], ids=["early", "late", "no box"]
)
def test_cancelling_a_search_ends_its_process(cwd: Path, after_seconds: float, box: str | None) -> None:
    set_trap(cwd)
    hanging = write_program(cwd / "bwrap", f"#!/bin/sh\nexec {box}\n")
    grep = GrepTool(SearchScope(cwd, bubblewrap=hanging if box else None))

    async def main() -> None:
        running = asyncio.ensure_future(grep.call({"pattern": SLOW_PATTERN}))
        done, _ = await asyncio.wait([running], timeout=after_seconds)
        assert not done
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, PATIENCE_SECONDS)

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < (PATIENCE_SECONDS if box is None else 25), "a start gives up after 30"


def test_names_that_are_no_text_do_not_disturb(grep: GrepTool, cwd: Path) -> None:
    os.close(os.open(os.fsencode(cwd) + b"/latin\xe9", os.O_CREAT))
    (cwd / "two\nlines").write_text("unusual\n", encoding="utf-8")
    assert text_of(grep, pattern="unusual", outputMode="content") == "two\ufffdlines:1:unusual"


def test_a_very_long_line_is_searched_to_its_end_under_one_number(grep: GrepTool, cwd: Path) -> None:
    (cwd / "long").write_text("first\n" + "x" * 5_000_000 + "FOUND\nFOUND\n", encoding="utf-8")
    lines = text_of(grep, pattern="FOUND", outputMode="content").split("\n")
    assert lines == ["long:2:[Omitted long line with 1 matches]", "long:3:FOUND"]
    assert text_of(grep, pattern="xx$|FOUND", outputMode="count") == "long:2"


def test_a_file_that_becomes_binary_is_searched_so_far(grep: GrepTool, cwd: Path) -> None:
    with (cwd / "log").open("wb") as file:
        file.write(b"needle\n" * 20_000)
        file.truncate(1 << 40)
    said = text_of(grep, pattern="needle", outputMode="content", path="log", limit=2)
    assert said.split("\n")[:2] == ["log:1:needle", "log:2:needle"]
    count = text_of(grep, pattern="needle", outputMode="count", path="log")
    assert 9_000 < int(count.removeprefix("log:")) <= 20_000


def test_a_line_that_memory_does_not_hold_ends_the_search_and_earlier_results_are_kept(cwd: Path) -> None:
    (cwd / "huge").write_text("x" * (80 << 20), encoding="utf-8")
    said = text_of(GrepTool(SearchScope(cwd), memory_bytes=1 << 27), pattern="needle")
    assert said.startswith(".hidden\na.py\n[the search broke off before its end")
    assert text_of(GrepTool(SearchScope(cwd)), pattern="needle") == ".hidden\na.py\nsrc/b.ts\nsrc/deep/c.py"


def test_ignored_files_are_left_out_unless_they_are_asked_for(grep: GrepTool, cwd: Path) -> None:
    (cwd / ".gitignore").write_text("*.ts\nprivate/\n", encoding="utf-8")
    (cwd / "src/.rgignore").write_text("/deep\n", encoding="utf-8")
    (cwd / "private").mkdir()
    (cwd / "private/p.py").write_text("needle", encoding="utf-8")
    assert text_of(grep, pattern="needle") == ".hidden\na.py"
    assert text_of(grep, pattern="needle", glob="*.{ts,py}") == "a.py"
    assert text_of(grep, pattern="needle", glob="src/**").startswith("No match")
    assert text_of(grep, pattern="needle", path="src").startswith("No match")
    assert text_of(grep, pattern="needle", path="src/b.ts") == "src/b.ts"
    assert text_of(grep, pattern="needle", glob="*.{ts,py}", includeIgnored=True) == (
        "a.py\nprivate/p.py\nsrc/b.ts\nsrc/deep/c.py"
    )


def test_settings_of_the_user_change_nothing(
    grep: GrepTool, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd / "rgrc").write_text("--glob=!a.py\n--pre=cat\n", encoding="utf-8")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(cwd / "rgrc"))
    assert text_of(grep, pattern="needle") == ".hidden\na.py\nsrc/b.ts\nsrc/deep/c.py"
