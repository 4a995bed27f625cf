"""HTTP responses of generations, streamed or whole; a disconnecting client aborts them at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight_contract.kv_blocks import HAND_OVER_HEADER
from inflight_engine.request import FinishReason
from inflight_engine.server.answers.channels import Channels, Lane
from inflight_engine.server.answers.send import server_host, server_send
from inflight_engine.server.answers.writer import AnswerFormat, AnswerWriter
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.registry import RequestRegistry

_RELAY_PERIOD = 0.9
"""Seconds after which a silent response for a relay gets a heartbeat: relays are told to expect one each second."""
CLIENT_PERIOD = 15.0
"""Likewise of a stream for a client: proxies cut connections that are silent for a minute. The head of a stream whose
request waits longer is sent with the first heartbeat; what fails after that is an event."""
_ROUNDS = 10
"""Rounds in a period. A heartbeat comes in the nearest one, so up to a twentieth of the period early or late."""


class Heartbeats:
    """Heartbeats of all responses: those that report their progress to a relay, and streams for clients.

    Args:
        silent: those for relays stop, so that a relay detects a stalled engine.
        source: returns the name of this engine at an address, for relays; None: it has none.
    """

    def __init__(self, silent: Callable[[], bool], source: Callable[[str], str | None]) -> None:
        self._relays = _Beats(_RELAY_PERIOD, silent)
        self._clients = _Beats(CLIENT_PERIOD, lambda: False)
        self._source = source
        self._leaves = False

    def __len__(self) -> int:
        """Number of open responses."""
        return len(self._relays) + len(self._clients)

    def leave(self) -> None:
        """Tell relays from now on that this replica drains, where others can go on with its requests."""
        self._leaves = True
        for writer in self._relays.open:
            self.greet(writer)

    def greet(self, writer: AnswerWriter, *, hands_over: bool = False) -> None:
        """Tell the relay of a response that this replica drains, if it does.

        Args:
            hands_over: tell it the same after the first token.
        """
        if (self._leaves or hands_over) and (name := self._source(writer.host)) is not None:
            writer.name_source(name, at_once=self._leaves)

    def of(self, call: Call) -> _Beats | None:
        """The heartbeats of a call's response; None: it has none."""
        if call.relayed:
            return self._relays
        return self._clients if call.streaming else None


class _Beats:
    """Heartbeats with one period: one timer for all.

    Args:
        period: seconds.
    """

    def __init__(self, period: float, silent: Callable[[], bool]) -> None:
        self._period = period
        self._silent = silent
        self._rounds: list[dict[AnswerWriter, None]] = [{} for _ in range(_ROUNDS)]
        self._round_of: dict[AnswerWriter, int] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of open responses."""
        return len(self._round_of)

    @property
    def open(self) -> list[AnswerWriter]:
        """The open responses."""
        return [*self._round_of]

    def add(self, stream: AnswerWriter) -> None:
        """Add an open response."""
        self._check_after(stream, _ROUNDS)
        if self._timer is None:
            self._arm()

    def remove(self, stream: AnswerWriter) -> None:
        """Remove a response that is complete or whose client disconnected."""
        del self._rounds[self._round_of.pop(stream)][stream]

    def _check_after(self, stream: AnswerWriter, rounds: int) -> None:
        """Check a response in the last of so many rounds from now."""
        self._round_of[stream] = number = (self._next + rounds - 1) % _ROUNDS
        self._rounds[number][stream] = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period / _ROUNDS, self._beat)

    def _beat(self) -> None:
        if not self._round_of:
            self._timer = None
            return
        self._arm()
        number = self._next
        self._next = (number + 1) % _ROUNDS
        if not self._rounds[number] or self._silent():
            return
        streams, self._rounds[number] = self._rounds[number], {}
        now = time.monotonic()
        for stream in streams:
            rounds = round((1 - (now - stream.written_at) / self._period) * _ROUNDS)
            if rounds <= 0:
                stream.beat()
            self._check_after(stream, rounds if rounds > 0 else _ROUNDS)


class GenerationResponse(Response):
    """Waits for tokens and writes them. Headers are sent with the first token, so that earlier failures have a status
    code. A failed choice fails the response; after its end, no choice continues to run.
    """

    def __init__(
        self, registry: RequestRegistry, heartbeats: Heartbeats, channels: Channels, call: Call, answer: AnswerFormat
    ) -> None:
        super().__init__()
        self._registry = registry
        self._heartbeats = heartbeats
        self._channels = channels
        self._call = call
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, beats = self._call, self._heartbeats.of(self._call)
        send_body, lane = server_send(scope), None
        if call.relayed and call.streaming:
            lane = self._channels.lane(Headers(scope=scope), send_body)
        watch = asyncio.create_task(self._watch(receive, lane))
        try:
            if lane is None:
                writer = AnswerWriter(call, self._answer, send, send_body, 0 if self._channels.offered else None)
            else:
                writer = AnswerWriter(call, self._answer, send, lane.send, lane.number)
            if beats is not None:
                beats.add(writer)
            try:
                if call.relayed:
                    writer.host = server_host(scope)
                    writer.begin()
                    hands_over = Headers(scope=scope).get(HAND_OVER_HEADER) == "1"
                    self._heartbeats.greet(writer, hands_over=hands_over)
                call.inbox.read(writer.write)
                await writer.complete
            finally:
                if beats is not None:
                    beats.remove(writer)
        finally:
            watch.cancel()
            call.inbox.close()
            if lane is not None:
                lane.end()
            self._abandon()

    async def _watch(self, receive: Receive, lane: Lane | None) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if lane is not None:
            lane.end()
        self._abandon()

    def _abandon(self) -> None:
        for generation in self._call.choices:
            self._registry.end(generation, FinishReason.ABORT)
