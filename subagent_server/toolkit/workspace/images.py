"""Images as content blocks of the Messages API."""

import base64
from typing import Any

from subagent_server.domain.images import check_image, media_type


def image_block(name: str, data: bytes) -> dict[str, Any]:
    """Return the content block of an image.

    Raises:
        BadArgument: the API would refuse it, and with it the whole conversation.
    """
    check_image(name, data)
    source = {"type": "base64", "media_type": media_type(data), "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}
