"""What one request holds of a conversation with many images and documents."""

import base64
from typing import Any

from subagent_server.loop.request import MOST_ATTACHMENTS, MOST_CHARACTERS, fitting
from subagent_server.toolbox.editor import image_block
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.turns import calls, says, use
from tests.loop.scripted_run import Played, ScriptedTool, echo


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
