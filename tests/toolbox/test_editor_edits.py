"""Making and changing files."""

import os
import stat
from pathlib import Path

import pytest

from subagent_server.toolbox.editor import EditorTool
from tests.toolbox.calls import fault_of, text_of


@pytest.fixture
def editor(tmp_path: Path) -> EditorTool:
    return EditorTool(cwd=tmp_path)


def test_create_makes_a_file_and_its_directories(editor: EditorTool, tmp_path: Path) -> None:
    text = text_of(editor, command="create", path="a/b/c.txt", file_text="é one\r\ntwo")
    assert text == "a/b/c.txt was created (2 lines)."
    assert (tmp_path / "a/b/c.txt").read_bytes() == "é one\r\ntwo".encode()


def test_create_overwrites_and_says_so(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old", encoding="utf-8")
    (tmp_path / "run.sh").chmod(0o750)
    assert "overwritten" in text_of(editor, command="create", path="run.sh", file_text="")
    assert (tmp_path / "run.sh").read_bytes() == b""
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o750


def test_a_new_file_has_the_mode_that_the_umask_leaves(editor: EditorTool, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        text_of(editor, command="create", path="a.txt", file_text="x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_create_refuses_the_place_of_a_directory(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for path in ("sub", ".", str(tmp_path), "sub/."):
        assert "a directory" in fault_of(editor, command="create", path=path, file_text="x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sub"]


def test_replace_changes_the_one_place_and_shows_it(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 21)), encoding="utf-8")
    text = text_of(editor, command="str_replace", path="a.txt", old_str="line 10\nline 11\n", new_str="new\n")
    assert text.startswith("a.txt was edited.\n     6\tline 6\n")
    assert "    10\tnew\n    11\tline 12\n" in text
    assert "line 17" not in text
    assert (tmp_path / "a.txt").read_text(encoding="utf-8").count("\n") == 19


def test_replace_without_a_new_text_removes(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("keep drop keep", encoding="utf-8")
    text_of(editor, command="str_replace", path="a.txt", old_str=" drop")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "keep keep"


def test_replace_takes_every_character_as_it_is(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(r"a.*(b)\1 $& \n", encoding="utf-8")
    text_of(editor, command="str_replace", path="a.txt", old_str=r".*(b)\1", new_str=r"\g<0>\\n$1")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == r"a\g<0>\\n$1 $& \n"


def test_replace_says_how_often_and_at_which_lines_a_text_occurs(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\nx x\nz\n", encoding="utf-8")
    sentence = fault_of(editor, command="str_replace", path="a.txt", old_str="x", new_str="w")
    assert "occurs 3 times in a.txt, at lines 1, 3, 3:" in sentence
    assert "does not occur in a.txt" in fault_of(
        editor, command="str_replace", path="a.txt", old_str="q", new_str="w"
    )
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "x\ny\nx x\nz\n"


def test_the_lines_of_very_many_places_are_not_all_named(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 100_000, encoding="utf-8")
    sentence = fault_of(editor, command="str_replace", path="a.txt", old_str="x", new_str="w")
    assert "occurs 100000 times" in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"command": "str_replace", "old_str": "", "new_str": "x"}, "`old_str` is empty"),
        ({"command": "str_replace", "new_str": "x"}, "`old_str` is missing"),
        ({"command": "str_replace", "old_str": "one", "new_str": "one"}, "nothing would change"),
        ({"command": "str_replace", "old_str": 1, "new_str": "x"}, "old_str: Input should be a valid string"),
        ({"command": "create"}, "`file_text` is missing"),
        ({"command": "insert", "insert_text": "x"}, "`insert_line` is missing"),
        ({"command": "insert", "insert_line": 1}, "`insert_text` is missing"),
        ({"command": "insert", "insert_line": 4, "insert_text": "x"}, "from 0 to 3"),
        ({"command": "insert", "insert_line": -1, "insert_text": "x"}, "from 0 to 3"),
        (
            {"command": "insert", "insert_line": "1", "insert_text": "x"},
            "insert_line: Input should be a valid integer",
        ),
        ({"command": "create", "file_text": "half \ud83d"}, "surrogate"),
    ],
)
def test_an_edit_that_cannot_be_done_is_refused_and_changes_nothing(
    editor: EditorTool, tmp_path: Path, arguments: dict[str, object], word: str
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    sentence = fault_of(editor, path="a.txt", **arguments)
    assert word in sentence
    assert sentence.endswith(".")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one\ntwo\nthree\n"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("before", "line", "addition", "after"),
    [
        ("a\nb\n", 0, "x\n", "x\na\nb\n"),
        ("a\nb\n", 0, "x", "x\na\nb\n"),
        ("a\nb\n", 1, "x\ny\n", "a\nx\ny\nb\n"),
        ("a\nb\n", 2, "x", "a\nb\nx\n"),
        ("a\nb", 2, "x", "a\nb\nx"),
        ("a\nb", 1, "x", "a\nx\nb"),
        ("", 0, "x", "x"),
        ("", 0, "x\n", "x\n"),
        ("a\n", 1, "", "a\n\n"),
        ("a\n\n\n", 2, "x", "a\n\nx\n\n"),
        ("a\r\nb\r\n", 1, "x\ny", "a\r\nx\r\ny\r\nb\r\n"),
        ("a\r\nb", 2, "x\r\n", "a\r\nb\r\nx\r\n"),
        ("a\n", 0, "x\r\n", "x\na\n"),
    ],
)
def test_insert_puts_lines_of_their_own_after_a_line(
    editor: EditorTool, tmp_path: Path, before: str, line: int, addition: str, after: str
) -> None:
    (tmp_path / "a.txt").write_bytes(before.encode())
    text_of(editor, command="insert", path="a.txt", insert_line=line, insert_text=addition)
    assert (tmp_path / "a.txt").read_bytes() == after.encode()


def test_insert_takes_the_text_under_its_older_name_too(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    text = text_of(editor, command="insert", path="a.txt", insert_line=1, new_str="x\n" * 20)
    assert text.endswith("    21\tx"), "all of it is shown"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\nb\nc\r\n", "a\nb", "x\ny", b"x\ny\nc\r\n"),
        (b"a\nb\nc\r\nd\r\n", "c\nd", "x\ny", b"a\nb\nx\r\ny\r\n"),
        (b"\xef\xbb\xbfa\nb\n", "a", "x", b"\xef\xbb\xbfx\nb\n"),
        ("é\n€\n".encode(), "€", "𝄞", "é\n𝄞\n".encode()),
        (b"a\rb\n", "b", "x", b"a\rx\n"),
    ],
)
def test_line_breaks_and_encoding_stay_as_they_were(
    editor: EditorTool, tmp_path: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (tmp_path / "a.txt").write_bytes(before)
    text_of(editor, command="str_replace", path="a.txt", old_str=old, new_str=new)
    assert (tmp_path / "a.txt").read_bytes() == after


def test_an_edit_keeps_mode_bits(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("one\n", encoding="utf-8")
    for mode in (0o755, 0o600, 0o664):
        (tmp_path / "a.sh").chmod(mode)
        text_of(editor, command="insert", path="a.sh", insert_line=0, insert_text="x")
        assert stat.S_IMODE((tmp_path / "a.sh").stat().st_mode) == mode


def test_a_file_that_is_not_utf_8_is_not_edited(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"na\xefve\n")
    for rest in (
        {"command": "str_replace", "old_str": "ve", "new_str": "x"},
        {"command": "insert", "insert_line": 0, "insert_text": "x"},
    ):
        assert "latin is not UTF-8" in fault_of(editor, path="latin", **rest)
    assert (tmp_path / "latin").read_bytes() == b"na\xefve\n"


def test_editing_through_a_link_changes_the_file_and_keeps_the_link(
    editor: EditorTool, tmp_path: Path
) -> None:
    (tmp_path / "real.txt").write_text("one\n", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to("real.txt")
    text_of(editor, command="str_replace", path="link.txt", old_str="one", new_str="two")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text(encoding="utf-8") == "two\n"
