"""The baseline: an asyncio server that reads posts, looks at nothing, and always gives the same answer."""

import asyncio

ANSWER = b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2]))
        writer.write(ANSWER)
        await writer.drain()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
