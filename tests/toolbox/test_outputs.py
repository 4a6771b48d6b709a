"""Results that are too long for the model: cut, kept whole in a file, and named (SPEC section 6)."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.toolbox.outputs import MOST_BASE64, KeptOutputs
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.files import longest_file

SECRET = "a-secret-that-nobody-may-see"


def image(characters: int) -> dict[str, object]:
    """Return an image block of so much base64."""
    data = base64.b64encode(b"p" * (characters * 3 // 4)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_a_short_result_stays_as_it_is(tmp_path: Path) -> None:
    result = ToolResult([{"type": "text", "text": "x" * 100}, image(400)], is_error=True)
    assert KeptOutputs(Directory(tmp_path / "outputs")).shortened(result, 100) == result
    assert not (tmp_path / "outputs").exists()


def test_a_long_text_is_cut_to_head_and_tail_and_the_file_holds_all_of_it_but_the_secrets(
    tmp_path: Path,
) -> None:
    kept = KeptOutputs(Directory(tmp_path / "outputs"), Masker([SECRET]))
    text = "begin " + "ü" * 3_000_000 + SECRET + " end"
    result = kept.shortened(replace(ToolResult.failure(text), exit_code=3), 1000)
    assert result.is_error and result.exit_code == 3 and len(result.text) < 1300
    assert result.text.startswith("begin ü") and result.text.endswith(" end")
    (file,) = (tmp_path / "outputs").iterdir()
    assert str(file) in result.text
    assert file.read_text(encoding="utf-8") == text.replace(SECRET, "***")


def test_many_texts_count_together_and_other_blocks_stay(tmp_path: Path) -> None:
    blocks = [{"type": "text", "text": f"line {n}"} for n in range(1000)]
    result = KeptOutputs(Directory(tmp_path)).shortened(ToolResult([*blocks, image(400)]), 500)
    text, picture = result.content
    assert picture == image(400) and text["text"].startswith("line 0\n\nline 1")
    (file,) = tmp_path.iterdir()
    assert file.read_text(encoding="utf-8") == "\n\n".join(str(block["text"]) for block in blocks)


def test_an_image_that_the_api_would_refuse_is_kept_and_named(tmp_path: Path) -> None:
    big = image(MOST_BASE64["image"] + 4)
    result = KeptOutputs(Directory(tmp_path)).shortened(ToolResult([big]), 1000)
    (file,) = tmp_path.iterdir()
    assert str(file) in result.text and file.suffix == ".png" and "too big" in result.text
    assert file.read_bytes().startswith(b"ppp")


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_if_nothing_can_be_kept_the_model_reads_so(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "outputs" if place == "file" else None
    result = KeptOutputs(None if directory is None else Directory(directory)).shortened(
        ToolResult([{"type": "text", "text": "x" * 9_000}]), 1000
    )
    assert "could not be kept" in result.text and len(result.text) < 1300


def test_what_a_full_disk_takes_in_part_is_not_called_whole(tmp_path: Path) -> None:
    kept = KeptOutputs(Directory(tmp_path))
    with longest_file(1_000):
        cut = kept.shortened(ToolResult([{"type": "text", "text": "x" * 1_500}]), 1_000).text
        whole = kept.keep(b"x" * 1_500, None)
    assert "the first 1,000 of 1,500 bytes are in" in cut and whole.startswith("not kept: ")
