"""The first words to the model."""

import base64
from pathlib import Path

from subagent_server.loop.prompt import Task, system_blocks, task_blocks
from subagent_server.run.files import Entry

RUN_ID = "20261122-093015-417-k3f9qz"


def task(system_prompt: str = "", inputs: tuple[tuple[Entry, str], ...] = ()) -> Task:
    """Return a task with nothing to fill in that a test does not care for."""
    return Task(RUN_ID, "painter", system_prompt, "Paint it.", "/somewhere", inputs)


def test_the_system_prompt_is_literal_and_followed_by_the_name_of_the_run_and_how_to_ask_and_finish() -> None:
    prompt = "  Paint ${HOME} {braces} %s ünïcode\n\n"
    literal, preamble = system_blocks(task(prompt), may_ask=True, structured=True)
    assert literal["text"] == prompt and literal["cache_control"] == {"type": "ephemeral"}
    for words in (RUN_ID, "painter", "/somewhere", "ask_parent", "final_answer"):
        assert words in preamble["text"]


def test_the_preamble_names_only_abilities_that_the_run_has() -> None:
    (preamble,) = system_blocks(task(), may_ask=False, structured=False)
    assert "ask_parent" not in preamble["text"] and "final_answer" not in preamble["text"]


def test_inputs_stand_before_the_prompt_as_text_image_and_document(tmp_path: Path) -> None:
    text, png, pdf = tmp_path / "01-a-b.txt", tmp_path / "02-pic.png", tmp_path / "03-doc.pdf"
    text.write_text("Grüße", encoding="utf-8")
    png.write_bytes(b"\x89PNG\r\n\x1a\n...")
    pdf.write_bytes(b"%PDF-1.7...")
    kinds = ((text, "text/plain"), (png, "image/png"), (pdf, "application/pdf"))
    inputs = [(Entry.at(path), kind) for path, kind in kinds]
    blocks = task_blocks(task().prompt, inputs)
    assert "a-b.txt" in blocks[0]["text"] and "Grüße" in blocks[0]["text"]
    image, document = (block for block in blocks if block["type"] != "text")
    assert image["type"] == "image" and image["source"]["media_type"] == "image/png"
    assert document["type"] == "document"
    assert base64.b64decode(document["source"]["data"]) == b"%PDF-1.7..."
    assert blocks[-1] == {"type": "text", "text": "Paint it."}
