"""The external processor of the Envoy of this pod: one stream for each request, open until its response has ended."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from inflight_gateway.ext_proc import messages
from inflight_gateway.ext_proc.exchange import Exchange, Parts
from inflight_gateway.ext_proc.http2 import Connection, Stream, framed
from inflight_gateway.ext_proc.view import Head

_log = logging.getLogger(__name__)

_CONTINUE_HEADERS = framed(messages.CONTINUE_HEADERS.SerializeToString())

_BACKLOG = 128
"""Connections that wait to be accepted: each of Envoy's threads has one, and opens it again when the picker
restarts."""


class Processor:
    """An exception ends the stream of its request; Envoy then continues as without a picker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._connections: set[Connection] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, socket: Path) -> None:
        """Listens until stopped. `socket` must not exist."""
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._answer, self._connections.add, self._connections.discard),
            str(socket),
            backlog=_BACKLOG,
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.abort()

    def _answer(self, stream: Stream) -> _Call:
        return _Call(self._parts, stream)


class _Call:
    def __init__(self, parts: Parts, stream: Stream) -> None:
        self._parts = parts
        self._stream = stream
        self._exchange: Exchange | None = None
        self._placing: asyncio.Task[None] | None = None

    def message(self, content: bytes) -> None:
        message = ProcessingRequest.FromString(content)
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            head = Head(
                messages.header_pairs(message.request_headers), end_of_stream=message.request_headers.end_of_stream
            )
            self._exchange = exchange = Exchange(self._parts, head, ())
            refusal = exchange.refusal()
            if refusal is not None:
                self._send(refusal)
            elif head.end_of_stream:
                self._place(exchange, "request_headers", b"")
            else:
                self._stream.send(_CONTINUE_HEADERS)
        elif kind == "request_body" and self._exchange is not None:
            self._place(self._exchange, "request_body", message.request_body.body)
        else:
            raise ValueError(f"the picker takes no {kind} here: see the processing mode of its filter")

    def closed(self) -> None:
        exchange, placing = self._exchange, self._placing
        if exchange is None:
            return
        if placing is None or placing.done():
            exchange.close()
        else:
            placing.cancel()
            placing.add_done_callback(lambda _: exchange.close())

    def _place(self, exchange: Exchange, stage: messages.Stage, content: bytes) -> None:
        self._placing = asyncio.get_running_loop().create_task(self._answers(exchange, stage, content))

    async def _answers(self, exchange: Exchange, stage: messages.Stage, content: bytes) -> None:
        answers = exchange.place(stage, content)
        del content  # may be large, and the request may be held
        try:
            async for answer in answers:
                self._send(answer)
        except Exception:
            _log.exception("a request goes on without the picker")
            self._stream.fail("see above")

    def _send(self, answer: Any) -> None:
        self._stream.send(framed(answer.SerializeToString()))
