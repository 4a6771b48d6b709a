"""A search that takes minutes, for tests of its end."""

from pathlib import Path

SLOW_PATTERN = r"aab|\b(?:ä{0,20}\B.{0,30}){50}\pN"


def set_trap(directory: Path) -> None:
    """Write a file that takes minutes to search for `SLOW_PATTERN`, behind one that matches at once."""
    (directory / "a_first").write_text("aab\n", encoding="utf-8")
    (directory / "b_trap").write_text(f"{'ä' * 1000} " * 3000, encoding="utf-8")
