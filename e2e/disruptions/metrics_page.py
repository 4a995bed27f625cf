"""A faulty metrics page in front of an engine: `python metrics_page.py hang|huge PORT:LISTEN...`.

Listens on each LISTEN. A request for `/metrics` gets the faulty page; every other one is passed on to the engine's PORT
on loopback, and its connection is closed after the answer, so that no later request is passed on unseen. Prints
`ready`, then a line for each faulty page. Needs the standard library alone.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

HUGE_BYTES = 100 * 2**20
LINE = b'vllm:num_requests_waiting{model_name="chat",engine="%d"} 1.0\n'
HEAD = (
    f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {HUGE_BYTES}\r\n"
    "Connection: close\r\n\r\n"
).encode()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send nothing until the caller gives up."""
    await reader.read()


async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send 100 MB of a well-formed page."""
    writer.write(HEAD)
    left, number = HUGE_BYTES, 0
    while left:
        lines = b"".join(LINE % number for number in range(number, number + 1000))[:left]
        writer.write(lines)
        await writer.drain()
        left, number = left - len(lines), number + 1000


PAGES = {"hang": hang, "huge": huge}


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what comes until it ends."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(page: str, port: int, listen: int) -> asyncio.Server:
    """Answer on `listen` for the engine's `port`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            first = await reader.readuntil(b"\r\n")
            if first.split()[1].split(b"?")[0] == b"/metrics":
                print(first.decode(errors="replace").strip(), flush=True)
                await PAGES[page](reader, writer)
            else:
                engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", port)
                engine_writer.write(first + b"Connection: close\r\n")
                await asyncio.gather(pass_on(reader, engine_writer), pass_on(engine_reader, writer))
        writer.close()

    return await asyncio.start_server(answer, "0.0.0.0", listen)


async def main(page: str, ports: list[str]) -> None:
    """Serve until SIGTERM."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in ports]
    servers = [await serve(page, port, listen) for port, listen in pairs]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
