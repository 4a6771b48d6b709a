"""Recognise the images that the Messages API takes: PNG, JPEG, GIF, WebP, by content and not by name."""

from subagent_server.run.errors import BadArgument

MOST_BYTES = 5 * (1 << 20) * 3 // 4
"""The API takes 5 MiB of base64."""

MOST_PIXELS_A_SIDE = 8000


def media_type(data: bytes) -> str | None:
    """Return the media type of an image, None of anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def check_image(name: str, data: bytes) -> None:
    """Check an image against the limits of the API; `name` begins the sentence.

    Raises:
        BadArgument: the API would refuse it, and with it the whole conversation.
    """
    if len(data) > MOST_BYTES:
        raise BadArgument(
            f"{name} is an image of {len(data):,} bytes, and at most {MOST_BYTES:,} can be shown: "
            "make it smaller first."
        )
    size = size_of(data)
    if size is not None and max(size) > MOST_PIXELS_A_SIDE:
        raise BadArgument(
            f"{name} is an image of {size[0]} by {size[1]} pixels, and at most {MOST_PIXELS_A_SIDE} a side "
            "can be shown: make it smaller first."
        )


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height by the header, or None if the header lacks them."""
    if data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data.startswith(b"GIF8") and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data[12:16] == b"VP8X" and len(data) >= 30:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] in (b"VP8 ", b"VP8L") and len(data) >= 30:  # 14 bits each; those of VP8L less 1
        lossy = data[12:16] == b"VP8 "
        bits = int.from_bytes(data[26:30] if lossy else data[21:25], "little")
        width, height = bits & 0x3FFF, bits >> (16 if lossy else 14) & 0x3FFF
        return (width, height) if lossy else (width + 1, height + 1)
    return _jpeg_size(data) if data.startswith(b"\xff\xd8") else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # it fills the room before a marker (B.1.1.2)
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header (ITU T.81, B.2.2)
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            return int.from_bytes(data[position + 7 : position + 9], "big"), height
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None
