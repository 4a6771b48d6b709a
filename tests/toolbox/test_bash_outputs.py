"""What is printed in excess: cut for the model, kept in a file, never all in memory."""

import re
import tracemalloc
from pathlib import Path

import pytest

from subagent_server.run.files import Directory
from subagent_server.toolbox import outputs
from subagent_server.toolbox.outputs import OutputCapture
from tests.toolbox.calls import run, run_texts

pytestmark = pytest.mark.process


def kept(text: str) -> Path:
    match = re.search(r" in (/\S+\.txt)", text)
    assert match is not None, text[-500:]
    return Path(match[1])


def test_a_long_output_is_cut_and_kept_whole_in_a_file(tmp_path: Path) -> None:
    (text,) = run_texts(tmp_path, "seq 1 50000")
    whole = "".join(f"{n}\n" for n in range(1, 50001))
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("49999\n50000")
    assert 29_000 < len(text) < 31_000
    assert f"({len(whole):,} bytes)" in text
    assert kept(text).parent == tmp_path / "outputs"
    assert kept(text).read_text(encoding="utf-8") == whole
    assert kept(text).stat().st_mode & 0o077 == 0


def test_an_output_that_fits_is_shown_whole_and_leaves_no_file(tmp_path: Path) -> None:
    (text,) = run_texts(tmp_path, "head -c 30000 /dev/zero | tr '\\0' a")
    assert text == "a" * 30_000
    assert not (tmp_path / "outputs").exists()


def test_a_cut_tears_no_character(tmp_path: Path) -> None:
    prints = "printf '𝄞%.0s' {1..40000}"  # of four bytes: others leave room for one that is torn
    for offset in range(4):
        (text,) = run_texts(tmp_path, f"printf '{'a' * offset}'; {prints}")
        assert "\ufffd" not in text and 30_000 <= len(text) < 30_300


def test_a_huge_output_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "KEPT_BYTES", 8 << 20)  # 64 MiB in earnest
    tracemalloc.start()
    try:
        (text,) = run_texts(tmp_path, "head -c 9000000 /dev/zero | tr '\\0' x; echo; echo end")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    assert text.endswith("x\nend")
    assert "the first 8,388,608 of 9,000,005 bytes" in text
    assert kept(text).stat().st_size == 8 << 20


def test_the_output_of_a_command_that_timed_out_is_cut_and_kept_too(tmp_path: Path) -> None:
    (result,) = run(tmp_path, "seq 1 20000; sleep 60", timeout=1.0)
    assert result.is_error
    assert "timed out" in result.text
    assert kept(result.text).read_text(encoding="utf-8").endswith("\n20000\n")


def test_a_directory_that_cannot_be_made_is_said_and_costs_no_result(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("in the way", encoding="utf-8")
    first, second = run(tmp_path, "seq 1 200000", "echo next")
    assert "could not be kept" in first.text
    assert first.text.endswith("200000")
    assert second.text == "next"


def test_a_job_that_never_stops_printing_does_not_hold_the_next_command_up(tmp_path: Path) -> None:
    texts = run_texts(tmp_path, "yes & true", "kill %1; wait; echo done")
    assert texts[1].rstrip().endswith("done")


def test_output_in_small_pieces_is_cut_alike(tmp_path: Path) -> None:
    text = "".join(f"𝄞𝄞𝄞𝄞𝄞𝄞𝄞 {n}\n" for n in range(300)).encode()
    shown = set()
    for size in (1, 7, 1000, len(text)):
        capture = OutputCapture(Directory(tmp_path / str(size)), characters=500)
        for start in range(0, len(text), size):
            capture.write(text[start : start + size])
        shown.add(capture.finish().replace(f"/{size}/", "/n/"))
    (text_shown,) = shown
    assert "\ufffd" not in text_shown
