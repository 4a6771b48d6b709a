"""Bodies of HTTP answers, bounded: SDKs read them into memory whole, or up to the end of an event."""

from collections.abc import AsyncIterator, Callable

import httpx2

UNPACKED = {"Accept-Encoding": "identity"}
"""The header of requests whose answers are bounded: the bound of a packed one is narrow."""
_BEST_PACKED = 1 << 10
"""How many bytes at most come of one that is compressed, by each coding (of deflate)."""


class BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer, up to `most` bytes; then `too_long` makes the error to raise."""

    def __init__(self, response: httpx2.Response, most: int, too_long: Callable[[], Exception]) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._body = response.stream
        self._too_long = too_long
        named = response.headers.get_list("content-encoding", split_commas=True)
        codings = [coding for coding in named if coding.lower() not in ("", "identity")]
        self._left = most // _BEST_PACKED ** len(codings)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            self._left -= len(part)
            if self._left < 0:
                raise self._too_long()
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()
