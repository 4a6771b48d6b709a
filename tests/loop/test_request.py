"""What one request holds: the first words, the marks for the prompt cache, images and documents."""

import base64
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from subagent_server.loop.request import (
    MOST_ATTACHMENTS,
    MOST_CHARACTERS,
    Task,
    fitting,
    marked,
    system_blocks,
    task_blocks,
)
from subagent_server.run.files import Entry
from subagent_server.toolbox.editor import image_block
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.turns import Turn, calls, says, use
from tests.loop.scripted_run import Played, ScriptedTool, echo

MARK = {"type": "ephemeral"}


def picture(width: int = 800, more: int = 0) -> dict[str, Any]:
    header = b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IHDR" + width.to_bytes(4) + (600).to_bytes(4)
    return image_block("it", header + bytes(more))


def seen(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation that has an image in its task, and others in the results of tools."""
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": [b]} for n, b in enumerate(blocks)]
    return [{"role": "user", "content": [picture()]}, *({"role": "user", "content": [r]} for r in results)]


def kept(messages: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the messages whose images are still there."""
    blocks = [message["content"][0] for message in fitting(messages)]
    parts = [block["content"][0] if block["type"] == "tool_result" else block for block in blocks]
    return [number for number, part in enumerate(parts) if part["type"] == "image"]


def test_an_image_of_many_pixels_is_left_out_beside_more_than_twenty_others() -> None:
    few, many = seen(picture(2_001), *[picture(2_000)] * 18), seen(picture(2_001), *[picture(2_000)] * 19)
    assert fitting(few) is few
    assert kept(many) == [0, *range(2, 21)]


def test_the_older_half_goes_each_time_that_there_are_too_many_and_nothing_between() -> None:
    full = seen(*[picture()] * (MOST_ATTACHMENTS - 1))
    assert fitting(full) is full
    assert kept([*full, full[-1]]) == [*range(51, 101)]
    assert kept([*full, *[full[-1]] * 50])[0] == 51, "what goes before stays in the prompt cache"


def test_images_take_no_more_of_a_request_than_leaves_room_for_text_and_the_newest_is_shown() -> None:
    large = picture(more=3_900_000)
    numbers = kept(seen(*[large] * 8))
    assert 0 < len(numbers) * len(large["source"]["data"]) < MOST_CHARACTERS and numbers[-1] == 8


class Camera(ScriptedTool):
    """A tool whose result is an image."""

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult([picture(4_000)])


def test_a_conversation_of_screenshots_goes_on() -> None:
    played = Played(calls(*[use("camera")] * 25), says("Seen."), tools=[Camera("camera", echo)])
    assert played.outcome.text == "Seen."
    parts = [result["content"][0] for result in played.bodies[1]["messages"][-1]["content"]]
    assert {part["type"] for part in parts} == {"text"} and "left out" in parts[0]["text"]
    assert base64.b64decode(played.run.transcript[-2]["content"][0]["content"][0]["source"]["data"])


RUN_ID = "20261122-093015-417-k3f9qz"


def task(system_prompt: str = "", inputs: tuple[tuple[Entry, str], ...] = ()) -> Task:
    """Return a task with nothing to fill in that a test does not care for."""
    return Task(RUN_ID, "painter", system_prompt, "Paint it.", "/somewhere", inputs)


def test_the_system_prompt_is_literal_and_followed_by_the_name_of_the_run_and_how_to_ask_and_finish() -> None:
    prompt = "  Paint ${HOME} {braces} %s ünïcode\n\n"
    literal, preamble = system_blocks(task(prompt), may_ask=True, structured=True)
    assert literal["text"] == prompt and literal["cache_control"] == MARK
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


async def long_answer(arguments: dict[str, Any]) -> str:
    """Say something long, so that every prefix is long enough."""
    return f"{arguments} " + "x" * 4000


LONG = ScriptedTool("long", long_answer)


def marks(body: Turn) -> int:
    """Return how many marks a request carries."""
    return str(body).count("'cache_control'")


def prefixes(body: Turn) -> tuple[list[str], set[int]]:
    """Return what ends at each block of a request, its marks left out, and the numbers of marked blocks."""
    blocks = [*body.get("tools", []), *body["system"]]
    for message in body["messages"]:
        blocks += message["content"]
    plain = [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]
    marks = {number for number, block in enumerate(blocks) if "cache_control" in block}
    if "cache_control" in body:
        marks.add(max(n for n, block in enumerate(blocks) if block.get("type") != "thinking"))
    return list(accumulate(map(str, plain))), marks


def test_each_of_ten_turns_reads_the_whole_turn_before_it_from_the_cache_also_after_thirty_calls() -> None:
    turns = [calls(use("long", n=n), thinking="Hm. " * 20) for n in range(9)]
    turns[4] = calls(*(use("long", n=n) for n in range(30)))
    played = Played(*turns, says("Done."), tools=[LONG], max_turns=20)
    assert played.outcome.text == "Done." and len(played.bodies) == 10
    assert all(marks(body) <= 4 for body in played.bodies)
    for before, after in pairwise(played.bodies):
        (written, ends), (whole, later) = prefixes(before), prefixes(after)
        end = max(ends)
        assert whole[end] == written[end], "what was written is a beginning of the next request"
        assert any(end <= mark < end + 20 for mark in later), "a mark looks back over twenty blocks"
    assert all("cache_control" not in str(message) for message in played.run.transcript)


def test_the_marks_stand_at_the_end_of_the_request_before_and_of_the_part_that_all_runs_share() -> None:
    text: Turn = {"type": "text", "text": "x"}
    thought: Turn = {"type": "thinking", "thinking": "x", "signature": "s"}
    first = {"role": "user", "content": [text, text]}
    answer = {"role": "assistant", "content": [text, thought]}
    tool = {"name": "t"}
    system: list[Turn] = [text | {"cache_control": MARK}, text]

    alone = marked(system, [tool], [first])
    assert alone["messages"] == [first] and alone["tools"] == [tool] and alone["cache_control"] == MARK
    without_prompt = marked([text], [tool, tool], [first])
    assert without_prompt["tools"] == [tool, tool | {"cache_control": MARK}]
    assert "tools" not in marked([text], [], [first])

    later = marked(system, [tool], [first, answer, first])
    assert later["messages"] == [
        {"role": "user", "content": [text, text | {"cache_control": MARK}]},
        answer,
        first,
    ]
    paused = marked(system, [tool], [first, answer, answer])
    assert paused["messages"][1]["content"] == [text | {"cache_control": MARK}, thought], (
        "thoughts take no mark"
    )
    assert first == {"role": "user", "content": [text, text]}, "the conversation itself stays as it is"
