"""Results of MCP tools in the form that the Messages API takes."""

import base64
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult

from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.toolbox.mcp.mcp_tools import converted
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.api_checks import check_request

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8) + b"\0\0\0\x01\0\0\0\x01").decode()
PDF = base64.b64encode(b"%PDF-1.7\n").decode()
SECRET = b"a-secret-of-the-run"


def shown(result: dict[str, Any], directory: Path) -> ToolResult:
    """Return the content for the model, once the API has accepted it."""
    found = converted(
        CallToolResult.model_validate(result), KeptOutputs(Directory(directory), Masker([SECRET.decode()]))
    )
    content = found.content or [{"type": "text", "text": "(empty)"}]
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": found.is_error}
    use = {"type": "tool_use", "id": "t1", "name": "t", "input": {}}
    tool = {"name": "t", "input_schema": {"type": "object"}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [block]},
    ]
    check_request({"model": "m", "max_tokens": 1, "messages": messages, "tools": [tool]})
    return found


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def resource(**facts: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "x://1", **facts}}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ([text("a"), text("b")], ["a", "b"]),
        ([text(" "), text("b")], ["b"]),
        ([resource(text="inside", mimeType="text/plain")], ["[resource x://1]\ninside"]),
        (
            [resource(blob=base64.b64encode(b"words").decode(), mimeType="text/csv")],
            ["[resource x://1]\nwords"],
        ),
        (
            [{"type": "image", "mimeType": "image/png", "data": "no base64!"}],
            ["[image that is no valid base64,"],
        ),
        (
            [{"type": "resource_link", "uri": "f:///a", "name": "a", "mimeType": "t/p", "size": 5000}],
            ["[resource f:///a (t/p, 5,000 bytes): a]"],
        ),
        ([{"type": "resource_link", "uri": "f:///a", "name": "a"}], ["[resource f:///a: a]"]),
    ],
)
def test_texts_and_files_of_text_reach_the_model_as_text(
    tmp_path: Path, content: list[Any], wanted: list[str]
) -> None:
    blocks = shown({"content": content}, tmp_path).content
    assert [block["text"][: len(words)] for block, words in zip(blocks, wanted, strict=True)] == wanted


def test_images_and_pdf_reach_the_model_as_such_whatever_they_are_called(tmp_path: Path) -> None:
    content = [
        {"type": "image", "mimeType": "image/jpeg", "data": PNG},
        resource(blob=PNG, mimeType="application/octet-stream"),
        resource(blob=PDF, mimeType="application/pdf"),
    ]
    blocks = shown({"content": content}, tmp_path).content
    assert [block["type"] for block in blocks] == ["image", "text", "image", "text", "document"]
    assert blocks[0]["source"]["media_type"] == "image/png"
    assert not list(tmp_path.iterdir())


def test_content_that_the_model_cannot_see_is_kept_in_a_file_that_it_reads_of(tmp_path: Path) -> None:
    sound = base64.b64encode(b"RIFF sound " + SECRET).decode()
    content = [
        {"type": "audio", "mimeType": "audio/wav", "data": sound},
        {"type": "image", "mimeType": "image/bmp", "data": base64.b64encode(b"BM").decode()},
    ]
    for made in (shown({"content": content}, tmp_path / "out") for _ in range(2)):
        audio, image = (block["text"] for block in made.content)
    assert "[audio, audio/wav, 30 bytes, kept in " in audio and "[image, image/bmp" in image
    kept = Path(audio.removesuffix("]").rpartition("kept in ")[2])
    assert kept.read_bytes() == b"RIFF sound ***" and kept.suffix in (".wav", ".bin")
    assert len(list((tmp_path / "out").iterdir())) == 4, "no file is written over"


@pytest.mark.parametrize(
    ("content", "structured", "wanted"),
    [
        ([], {"a": "ü"}, ['{"a": "ü"}']),
        ([text("One.")], {"a": 1}, ["One.", '{"a": 1}']),
        ([text('{"a":  1}')], {"a": 1}, ['{"a":  1}']),
        ([text("5")], {"result": 5}, ["5"]),
        ([text("five")], {"result": "five"}, ["five"]),
        ([text("5")], {"a": 5, "b": 6}, ["5", '{"a": 5, "b": 6}']),
        ([text("[" * 100_000)], {"a": 1}, ["[" * 100_000, '{"a": 1}']),
    ],
    ids=[
        "alone",
        "beside a text",
        "as a text",
        "its value",
        "its text",
        "one of two values",
        "beside a deep text",
    ],
)
def test_structured_content_reaches_the_model_once(
    tmp_path: Path, content: list[Any], structured: Any, wanted: list[str]
) -> None:
    found = shown({"content": content, "structuredContent": structured}, tmp_path)
    assert [block["text"] for block in found.content] == wanted


def test_a_failure_reaches_the_model_in_text_alone(tmp_path: Path) -> None:
    image = {"type": "image", "mimeType": "image/png", "data": PNG}
    found = shown({"content": [text("No."), image], "isError": True}, tmp_path)
    assert found.is_error and found.text == "No.\n\n[image]"
    silent = shown({"content": [], "isError": True}, tmp_path)
    assert silent.is_error and "did not say why" in silent.text
