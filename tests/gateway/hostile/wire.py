"""Sends cases over sockets and reads what comes back."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

import httptools

from tests.gateway.hostile import http2
from tests.gateway.hostile.case import Case, Leave, Outcome

_ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: `close` sends a reset, which also frees the port at once."""


class _Answers:
    """Reads the responses of HTTP/1, one after the other."""

    def __init__(self, case: Case) -> None:
        self.found: list[tuple[int, bytes]] = []
        self._case, self._body = case, b""
        self._parser = httptools.HttpResponseParser(self)
        self.broken = ""

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.broken = "the gateway upgraded the connection"
        except httptools.HttpParserError as error:
            if not self.found:
                self.broken = f"the answer is not HTTP: {error} {data[:80]!r}"

    def on_headers_complete(self) -> None:
        if self._case.head and self._parser.get_status_code() >= 200:
            self.on_message_complete()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self.found.append((self._parser.get_status_code(), self._body))
        self._body = b""


async def send(case: Case, port: int) -> tuple[Outcome, str]:
    """Plays a case. Returns what came back, and what was wrong with it in form; empty: nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    outcome, answers, data = Outcome(), _Answers(case), b""

    async def read() -> None:
        nonlocal data
        while True:
            part = await reader.read(2**16)
            if not part:
                return
            data += part
            if case.leave is Leave.FIRST_BYTE:
                return
            if case.http2:
                if http2.answer(data) is not None or http2.ended(data):
                    return
            else:
                answers.feed(part)
                if answers.broken or len(answers.found) >= case.answers:
                    return

    try:
        for piece in case.pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
            elif piece:
                await asyncio.sleep(piece)
        if case.leave is not Leave.RESET:
            if case.leave is Leave.END:
                writer.write_eof()
            async with asyncio.timeout(case.patience_s):
                await asyncio.gather(read(), writer.drain())
    except (ConnectionError, TimeoutError):
        pass
    finally:
        socket_ = writer.get_extra_info("socket")
        with suppress(OSError):  # a reset has closed it
            socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        writer.transport.abort()
    if case.http2:
        whole = http2.answer(data)
        outcome.answers = [] if whole is None else [whole]
    else:
        outcome.answers = answers.found
    return outcome, answers.broken
