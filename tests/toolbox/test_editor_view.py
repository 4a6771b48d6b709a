"""Looking at files and directories."""

import base64
import os
import socket
import stat
import struct
import zlib
from pathlib import Path

import pytest

from subagent_server.toolbox.editor import EditorTool
from tests.toolbox.calls import call, fault_of, text_of


def png(width: int = 1, height: int = 1) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0\0"))
        + chunk(b"IEND", b"")
    )


def jpeg(width: int, height: int) -> bytes:
    return (
        b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + bytes(12)
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(width: int, height: int) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sizes


def lossy_webp(width: int, height: int) -> bytes:
    head = b"RIFF\x3c\0\0\0WEBPVP8 \x30\0\0\0\xd0\x01\0\x9d\x01\x2a"
    return head + struct.pack("<HH", width | 1 << 14, height)


def lossless_webp(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14 | 1 << 28
    return b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f" + struct.pack("<I", bits) + bytes(8)


@pytest.fixture
def editor(tmp_path: Path) -> EditorTool:
    return EditorTool(cwd=tmp_path)


def test_it_is_the_editor_that_models_know(editor: EditorTool) -> None:
    assert editor.definition() == {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
    assert editor.sequential, "edits of one turn are made in their order"


def test_a_file_is_shown_with_numbered_lines(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n  three\n", encoding="utf-8")
    expected = "     1\tone\n     2\t\n     3\t  three"
    assert text_of(editor, command="view", path="a.txt") == expected
    assert text_of(editor, command="view", path=str(tmp_path / "a.txt")) == expected
    assert text_of(editor, command="view", path="./a.txt", view_range=None) == expected


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [([1, 1], [1]), ([2, 4], [2, 3, 4]), ([4, -1], [4, 5]), ([5, 99], [5]), ([1, -1], [1, 2, 3, 4, 5])],
)
def test_a_range_picks_lines(editor: EditorTool, tmp_path: Path, wanted: list[int], shown: list[int]) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 6)), encoding="utf-8")
    text = text_of(editor, command="view", path="a.txt", view_range=wanted)
    assert text == "\n".join(f"{n:6}\tline {n}" for n in shown)


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ([6, 7], "5 lines"),
        ([0, 2], "`view_range`"),
        ([3, 2], "line 2"),
        ([1], "two"),
        ([1, 2, 3], "two"),
        (["1", "2"], "valid integer"),
        ("1-2", "valid list"),
        ([-1, -1], "line -1"),
        ([True, 3], "valid integer"),
    ],
)
def test_a_wrong_range_is_refused(editor: EditorTool, tmp_path: Path, wanted: object, word: str) -> None:
    (tmp_path / "a.txt").write_text("line\n" * 5, encoding="utf-8")
    assert word in fault_of(editor, command="view", path="a.txt", view_range=wanted)


def test_line_breaks_and_marks_of_other_systems_do_not_show(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\x0c\xe2\x80\xa8still two\r\nno end")
    text = text_of(editor, command="view", path="a.txt")
    assert text == "     1\tone\n     2\ttwo\x0c\u2028still two\n     3\tno end"


def test_an_empty_file_is_called_so(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert text_of(editor, command="view", path="a.txt") == "(a.txt is empty)"


def test_bytes_that_are_not_utf_8_are_replaced_and_that_is_said(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("naïve\nnext\n".encode("latin-1"))
    text = text_of(editor, command="view", path="latin")
    assert text.startswith("     1\tna\ufffdve\n     2\tnext\n[")
    assert "not UTF-8" in text


def test_a_long_file_is_cut_and_the_rest_can_be_asked_for(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "long").write_text("".join(f"line {n}\n" for n in range(1, 20_001)), encoding="utf-8")
    text = text_of(editor, command="view", path="long")
    assert len(text) < 51_000
    *_, last, note = text.split("\n")
    number = int(last.split()[0])
    assert note == f"[lines 1 to {number} of 20000 of long are shown: use view_range for others]"
    rest = text_of(editor, command="view", path="long", view_range=[number + 1, number + 2])
    assert rest.split("\n")[0].endswith(f"line {number + 1}")


def test_a_huge_line_is_cut(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 1_000_000 + "\nsecond\n", encoding="utf-8")
    text = text_of(editor, command="view", path="long")
    assert len(text) < 51_000
    assert "characters cut]" in text
    assert "second" in text_of(editor, command="view", path="long", view_range=[2, 2])


def test_a_file_beyond_all_bounds_is_refused_unread(editor: EditorTool, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert "sparse is larger than 32 MiB" in fault_of(editor, command="view", path="sparse")


def test_a_binary_file_is_refused_by_name(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"text first" * 2000 + b"\0\1\2")
    for command in ({"command": "view"}, {"command": "str_replace", "old_str": "a", "new_str": "b"}):
        assert "program is a binary file" in fault_of(editor, path="program", **command)


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (jpeg(3, 2), "image/jpeg"),
        (gif(2, 2), "image/gif"),
        (webp(5, 5), "image/webp"),
        (lossy_webp(8000, 5), "image/webp"),
        (lossless_webp(8000, 5), "image/webp"),
        (b"\x89PNG\r\n\x1a\n" + b"junk", "image/png"),
    ],
)
def test_an_image_is_shown_as_one_by_its_content(
    editor: EditorTool, tmp_path: Path, data: bytes, media_type: str
) -> None:
    (tmp_path / "picture.dat").write_bytes(data)
    (block,) = call(editor, command="view", path="picture.dat").content
    assert block["type"] == "image"
    assert block["source"]["type"] == "base64"
    assert block["source"]["media_type"] == media_type
    assert base64.b64decode(block["source"]["data"]) == data


@pytest.mark.parametrize(
    "data",
    [
        *(png(8001, 1), jpeg(1, 9000), gif(65535, 1), webp(10_000, 1)),
        *(lossy_webp(1, 8001), lossy_webp(8001, 1), lossless_webp(8001, 1), lossless_webp(1, 8001)),
    ],
)
def test_an_image_that_the_model_could_not_take_is_refused(
    editor: EditorTool, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "wide.png").write_bytes(data)
    assert "pixels" in fault_of(editor, command="view", path="wide.png")


def test_an_image_of_too_many_bytes_is_refused(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(png() + bytes(4_000_000))
    assert "make it smaller" in fault_of(editor, command="view", path="big.png")


def test_a_directory_is_listed_two_levels_deep_without_hidden_entries(
    editor: EditorTool, tmp_path: Path
) -> None:
    for name in ("b/c/d/e.txt", "a.txt", ".hidden/x", "b/.hidden", "node_modules/deep/x.js", "b/c/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("b")
    head, *entries = text_of(editor, command="view", path=".").split("\n")
    assert head.startswith("./ holds")
    assert entries == ["a.txt", "b/", "b/c/", "link -> b", "node_modules/"]
    assert text_of(editor, command="view", path="b").split("\n")[1:] == ["b/c/", "b/c/d/", "b/c/f.txt"]


def test_an_empty_directory_is_called_so(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty" in text_of(editor, command="view", path="empty")


def test_the_listing_of_a_huge_directory_is_bounded(editor: EditorTool, tmp_path: Path) -> None:
    for n in range(1500):
        (tmp_path / f"file{n:04}").touch()
    lines = text_of(editor, command="view", path=".").split("\n")
    assert len(lines) == 1002
    assert "more" in lines[-1]


def test_names_that_are_no_text_are_shown_on_one_line(editor: EditorTool, tmp_path: Path) -> None:
    (tmp_path / "two\nlines").touch()
    os.close(os.open(os.fsencode(tmp_path) + b"/latin\xe9", os.O_CREAT))
    assert text_of(editor, command="view", path=".").split("\n")[1:] == ["latin\ufffd", "two\ufffdlines"]


@pytest.mark.parametrize("command", ["view", "str_replace", "insert", "create"])
def test_a_fifo_socket_or_device_is_refused_without_waiting(
    editor: EditorTool, tmp_path: Path, command: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(tmp_path, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{directory}/socket")
        os.close(directory)
        rest = {"old_str": "a", "new_str": "b", "insert_line": 0, "insert_text": "x", "file_text": "x"}
        assert "fifo is a FIFO" in fault_of(editor, command=command, path="fifo", **rest)
        assert "socket is a socket" in fault_of(editor, command=command, path="socket", **rest)
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("gone", "There is no file gone"),
        ("gone/a", "There is no directory gone"),
        ("a.txt/b", "a.txt is not a directory"),
    ],
)
def test_a_path_to_nothing_is_refused(editor: EditorTool, tmp_path: Path, path: str, word: str) -> None:
    (tmp_path / "a.txt").touch()
    assert word in fault_of(editor, command="view", path=path)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"command": "view"}, "path: Field required"),
        ({"path": "a"}, "command: Field required"),
        ({"command": "remove", "path": "a"}, "'view'"),
        ({"command": "view", "path": 5}, "path: Input should be a valid string"),
        ({"command": "view", "path": ""}, "not a path"),
        ({"command": "view", "path": "a\0b"}, "not a path"),
        ({"command": "view", "path": "a\udcff"}, "surrogate"),
        ({"command": "view", "path": "x" * 5000}, "failed"),
        ({"command": "view", "path": "a", "extra": 1}, "extra: Extra inputs"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    editor: EditorTool, arguments: dict[str, object], word: str
) -> None:
    sentence = fault_of(editor, **arguments)
    assert word in sentence and sentence.endswith(".")


def test_an_agent_that_may_only_read_has_view_and_nothing_else(tmp_path: Path) -> None:
    editor = EditorTool(cwd=tmp_path, edit=False)
    definition = editor.definition()
    assert definition["name"] == "str_replace_based_edit_tool"
    assert "type" not in definition
    assert definition["input_schema"]["properties"]["command"]["const"] == "view"
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    assert "one" in text_of(editor, command="view", path="a.txt")
    for command in ("create", "str_replace", "insert"):
        rest = {"old_str": "one", "new_str": "b", "insert_line": 0, "insert_text": "x", "file_text": "x"}
        assert "not allowed" in fault_of(editor, command=command, path="a.txt", **rest)
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one\n"


def test_an_agent_that_may_only_write_is_shown_nothing(tmp_path: Path) -> None:
    editor = EditorTool(cwd=tmp_path, view=False)
    (tmp_path / "a.txt").write_text("one\nsecret\n", encoding="utf-8")
    assert "not allowed" in fault_of(editor, command="view", path="a.txt")
    assert "secret" not in text_of(editor, command="str_replace", path="a.txt", old_str="one", new_str="two")
