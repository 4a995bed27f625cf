"""Attacks on a gateway: each is a coroutine that one hostile client runs, and gives the status that it got."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.gateway.hostile import http2
from tests.gateway.hostile.case import CHAT, chat_body, head

SERVICES = 1000
"""Keyed services besides those that a run uses, each with a Secret of its own."""

MOST_BYTES = 32 * 2**20
HOLD_S = 10.0
"""Seconds that a client stays that neither ends nor is ended."""

HELD, CLOSED, UNDER_WAY, LATE = "held", "closed", "under way", "late"
"""In place of a status: no answer while the client stayed, a connection that was closed without one, neither when the
attacks ended, and one of the first two where the client did not run for a while, so that it was late itself."""

STREAMS, RESETS = 20, 100
"""HTTP/2 streams that one client opens at once, and that it resets at once."""

_STEP_S = 0.5
_PIECE = b" " * 2**16


@dataclass(frozen=True, slots=True)
class Target:
    """Ports of the gateway, and the Hosts of a service without API keys, of one with them, and of one whose engines are
    hostile."""

    port: int
    state_port: int
    keyless: str
    keyed: str
    evil: str


Attack = Callable[[Target, str], Awaitable[str]]
"""Called with the target and the address that the client connects from."""


@asynccontextmanager
async def _connected(port: int, peer: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _status(reader: asyncio.StreamReader, within: float = HOLD_S) -> str:
    """Returns the status of an HTTP/1 answer, or why there is none."""
    try:
        async with asyncio.timeout(within):
            while (line := await reader.readline()).startswith(b"HTTP/1.1 1"):
                await reader.readline()
    except TimeoutError:
        return HELD
    except (ConnectionError, ValueError):
        return CLOSED
    return line.split(b" ")[1].decode() if line.startswith(b"HTTP/1.1 ") else CLOSED


def _upload(target: str, host: str, length: int = MOST_BYTES) -> bytes:
    fields = [
        ("Host", host),
        ("Authorization", f"Bearer ifk_{secrets.token_hex(16)}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(length)),
    ]
    return head("POST", target, fields)


async def _sent(target: Target, peer: str, start: bytes, at_once: int, then: int) -> str:
    """Sends a head and `at_once` bytes of its body, then `then` bytes each half second while there is no answer."""
    async with _connected(target.port, peer) as (reader, writer):
        answer = asyncio.create_task(_status(reader))

        async def write() -> None:
            writer.write(start)
            for _ in range(0, at_once, len(_PIECE)):
                writer.write(_PIECE)
                await writer.drain()
            while then:
                await asyncio.sleep(_STEP_S)
                writer.write(b" " * then)
                await writer.drain()

        writing = asyncio.create_task(write())
        try:
            return await answer
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await writing


def _unknown() -> str:
    return f"{secrets.token_hex(4)}.default"


async def unknown_host(target: Target, peer: str) -> str:
    """A head with a body that does not come."""
    return await _sent(target, peer, _upload(CHAT, _unknown(), 300_000), 0, 0)


async def slow_tokenize(target: Target, peer: str) -> str:
    host = secrets.choice((_unknown(), target.keyless))
    return await _sent(target, peer, _upload("/tokenize", host), 4 * 2**20, 1000)


async def whole_tokenize(target: Target, peer: str) -> str:
    host = secrets.choice((_unknown(), target.keyless))
    return await _sent(target, peer, _upload("/tokenize", host), MOST_BYTES, 0)


async def slow_generation(target: Target, peer: str) -> str:
    """A body for a service without keys, whose memory is that of all."""
    return await _sent(target, peer, _upload(CHAT, target.keyless), 2 * 2**20, 1000)


async def idle(target: Target, peer: str) -> str:
    """A connection without a request, or with half of a head."""
    async with _connected(target.port, peer) as (reader, writer):
        writer.write(secrets.choice((b"", b"POST /v1/comp")))
        return await _status(reader)


async def wrong_key(target: Target, peer: str) -> str:
    body = chat_body()
    async with _connected(target.port, peer) as (reader, writer):
        writer.write(_upload(CHAT, target.keyed, len(body)) + body)
        return await _status(reader)


async def _http2(target: Target, peer: str, frames: bytes) -> str:
    async with _connected(target.port, peer) as (reader, writer):
        writer.write(http2.PREFACE + http2.frame(http2.SETTINGS, stream=0) + frames)
        data = b""
        try:
            async with asyncio.timeout(HOLD_S):
                while not http2.ended(data) and (status := http2.answer(data)) is None:
                    part = await reader.read(2**16)
                    if not part:
                        return CLOSED
                    data += part
        except TimeoutError:
            return HELD
        except ConnectionError:
            return CLOSED
        return CLOSED if http2.ended(data) else str(status and status[0])


def _heads(host: str, count: int, then: Callable[[int], bytes] = lambda _: b"") -> bytes:
    block = http2.fields([(":method", "POST"), (":scheme", "http"), (":authority", host), (":path", CHAT)])
    ids = range(1, 2 * count, 2)
    return b"".join(http2.frame(http2.HEADERS, block, http2.END_HEADERS, each) + then(each) for each in ids)


async def streams(target: Target, peer: str) -> str:
    """Many requests at once on a connection, whose bodies do not come."""
    return await _http2(target, peer, _heads(secrets.choice((_unknown(), target.keyless)), STREAMS))


async def resets(target: Target, peer: str) -> str:
    """Requests that are reset at once (CVE-2023-44487)."""
    reset = (8).to_bytes(4)
    frames = _heads(target.keyless, RESETS, lambda each: http2.frame(http2.RST_STREAM, reset, 0, each))
    return await _http2(target, peer, frames)


async def hostile_answer(target: Target, peer: str) -> str:
    """A client that reads the answer of a hostile engine."""
    body = chat_body(stream=True)
    async with _connected(target.port, peer) as (reader, writer):
        writer.write(_upload(CHAT, target.evil, len(body)) + body)
        status = await _status(reader)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(HOLD_S if status == "200" else 0.1):
                while await reader.read(2**16):
                    pass
        return status


async def watcher(target: Target, peer: str) -> str:
    """A reader of the state stream without a signature."""
    async with _connected(target.state_port, peer) as (reader, writer):
        writer.write(head("GET", "/v1/state?watch=1", [("Host", "state")]))
        status = await _status(reader)
        if status == "200":
            await asyncio.sleep(HOLD_S)
        return status


ATTACKS: dict[str, tuple[Attack, frozenset[str]]] = {
    "unknown host": (unknown_host, frozenset({"404", "429"})),
    # A connection that is closed with unread bytes is reset, which can take the answer away from its client.
    "slow tokenize": (slow_tokenize, frozenset({"404", "413", "429", CLOSED})),
    "whole tokenize": (whole_tokenize, frozenset({"404", "413", "429", CLOSED})),
    "slow generation": (slow_generation, frozenset({HELD, "503", "429", CLOSED})),
    "idle": (idle, frozenset({HELD, CLOSED})),
    "wrong key": (wrong_key, frozenset({"401", "429"})),
    "http2 streams": (streams, frozenset({HELD, CLOSED, "404", "429", "503"})),
    "http2 resets": (resets, frozenset({HELD, CLOSED})),
    "hostile answer": (hostile_answer, frozenset({"200", "429", "500", "502", "503", "504", CLOSED})),
    "state watcher": (watcher, frozenset({"401", "403"})),
}
"""Attacks by name, with what they may get."""
