"""The fixtures that answer at once: contents of tools, resources and prompts, as the suite asks for them."""

import json
from typing import Any

import mcp_types as types

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="


def text(words: str) -> types.TextContent:
    """Return a text."""
    return types.TextContent(text=words)


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    """Return a text that is embedded as a resource."""
    return types.EmbeddedResource(
        resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    )


PICTURE = types.ImageContent(data=IMAGE, mime_type="image/png")
TOOL_CONTENTS: dict[str, list[types.ContentBlock]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [PICTURE],
    "test_audio_content": [types.AudioContent(data=SOUND, mime_type="audio/wav")],
    "test_embedded_resource": [embedded("test://embedded-resource", "text/plain", "It is embedded.")],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        PICTURE,
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
}

TEMPLATE = "test://template/{id}/data"
_BEFORE, _BEHIND = TEMPLATE.split("{id}")
RESOURCES: dict[str, types.TextResourceContents | types.BlobResourceContents] = {
    uri: types.TextResourceContents(uri=uri, mime_type="text/plain", text=f"The text of {uri}.")
    for uri in ("test://static-text", "test://watched-resource")
} | {
    "test://static-binary": types.BlobResourceContents(
        uri="test://static-binary", mime_type="image/png", blob=IMAGE
    )
}


def resource(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    """Return a resource, or None if there is none at this address."""
    if uri.startswith(_BEFORE) and uri.endswith(_BEHIND):
        number = uri.removeprefix(_BEFORE).removesuffix(_BEHIND)
        facts = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(facts))
    return RESOURCES.get(uri)


PROMPT_ARGUMENTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


def prompt(name: str, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    """Return what the user says in a prompt."""
    match name:
        case "test_prompt_with_arguments":
            return [text("Prompt with arguments: arg1='{arg1}', arg2='{arg2}'".format(**arguments))]
        case "test_prompt_with_embedded_resource":
            said = "Embedded resource content for testing."
            return [
                embedded(arguments["resourceUri"], "text/plain", said),
                text("Please process the embedded resource above."),
            ]
        case "test_prompt_with_image":
            return [PICTURE, text("Please analyze the image above.")]
        case _:
            return [text("This is a simple prompt for testing.")]
