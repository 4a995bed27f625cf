"""A stand-in for the picker: one service, whose engines take turns as a script says."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import msgspec

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.link.wire import (
    BEAT_S,
    Answering,
    Ask,
    Ended,
    Frames,
    FromPicker,
    FromRelay,
    Gateways,
    Go,
    Keys,
    Known,
    Refuse,
    frame,
    from_relay,
)
from inflight_gateway.types import Endpoint, ServiceConfig
from tests.gateway.relay.fake_engine import FakeEngine

KEY = ServiceKey("ns", "svc")
CONFIG = ServiceConfig(KEY, "uid", "m", max_attempts=3)


class FakePicker:
    """Picks the first engine that the request does not avoid, or refuses where the script says so.

    Attributes:
        asked, answering, told: messages of the relay. reports: ends of requests as JSON objects.
        picks: engines of each pick: the best first, up to this number.
        prefill: engines compute prompts at first attempts, and hand them over.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.asked: list[Ask] = []
        self.answering: list[Answering] = []
        self.told: list[FromRelay] = []
        self.reports: list[dict] = []
        self.picks = 1
        self.prefill = False
        self.config = CONFIG
        self._engine = engine
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def start(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(path))

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def configure(self, **changes) -> None:
        """Changes the service."""
        self.config = replace(self.config, **changes)
        for writer in self._writers:
            writer.write(frame([Known(services=((KEY, self.config),), complete=True)]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        endpoints = tuple(Endpoint(address, f"pod-{address}") for address in self._engine.addresses)
        known = Known(((KEY, self.config),), ((KEY, endpoints),), hosts=Hosts(), complete=True)
        writer.write(frame([Keys(b"k" * 32), Gateways("gw", ()), known]))
        beats = asyncio.create_task(self._beat(writer))
        frames = Frames()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                answers = [
                    answer
                    for content in frames.feed(data)
                    for message in from_relay.decode(content)
                    for answer in self._take(message)
                ]
                if answers:
                    writer.write(frame(answers))
        beats.cancel()
        self._writers.discard(writer)
        writer.close()

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            writer.write(frame([]))

    def _take(self, message: FromRelay) -> list[FromPicker]:
        self.told.append(message)
        if isinstance(message, Ask):
            self.asked.append(message)
            return [self._pick(message)]
        if isinstance(message, Answering):
            self.answering.append(message)
        elif isinstance(message, Ended):
            self.reports.append(msgspec.json.decode(msgspec.json.encode(message.report)))
        return []

    def _pick(self, ask: Ask) -> FromPicker:
        do = self._engine.script(self._engine.turn)
        if do.refuse:
            self._engine.turn += 1
            return Refuse(ask.id, ask.attempt, do.refuse, "no_replica", "no replica is ready", do.headers)
        addresses = self._engine.addresses
        usable = [address for address in addresses if address not in ask.avoid] or addresses
        limits = (("x-ratelimit-limit-requests", "3"),)
        prefill = self.prefill and ask.attempt == 1
        return Go(ask.id, ask.attempt, tuple(usable[: self.picks]), do.within, limits, prefill=prefill)
