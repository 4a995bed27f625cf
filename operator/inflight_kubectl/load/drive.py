"""Sends a load, times each response, and monitors whether this program itself is the bottleneck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inflight_kubectl.load.answers import Answer, AnswerError
from inflight_kubectl.load.client import Client, DisconnectedError
from inflight_kubectl.load.shape import Draw, Shape, draws

if TYPE_CHECKING:
    from inflight_kubectl.engines.engine_access import PortForward

WARM, WARM_AT_RATE = 64, 16
"""Maximum connections opened before the load starts; at a rate most of the clients may never be needed."""

PAUSE_SECONDS = 0.2
"""Pause in seconds of a client whose request failed, so that a service that refuses all is not flooded."""

_TICK = 0.05


@dataclass(frozen=True, slots=True)
class Result:
    """A request that has ended. Times are seconds after the start of the load.

    Attributes:
        due: time when it should have been sent: latencies count from here, so that waiting for a free client shows.
        sent: time when it was sent.
        ended: time when the last byte arrived, or when it failed.
        ttft, tpot: seconds; None for a failed request, and TPOT for an output of one token.
        error: short description; empty for a complete response.
    """

    due: float
    sent: float
    ended: float
    ttft: float | None
    tpot: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    error: str = ""

    @property
    def latency(self) -> float:
        """Seconds from due to ended."""
        return self.ended - self.due


@dataclass(slots=True)
class Load:
    """A load while it runs, and after.

    Attributes:
        seconds: seconds since its start; the length of the whole load once it has ended.
        cpu: processor seconds that this program used.
        lags: delays of the event loop's wake-ups, in seconds.
        stopped: True if it was stopped early.
    """

    results: list[Result] = field(default_factory=list)
    in_flight: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    lags: list[float] = field(default_factory=list)
    stopped: bool = False


async def drive(
    forward: PortForward,
    shape: Shape,
    options: dict[str, Any],
    headers: dict[str, str],
    stop: asyncio.Event,
    progress: Callable[[Load], None],
    probe: str = "/health",
) -> Load:
    """Sends a whole load; the results have every sent request, except those in flight at an early end.

    Args:
        options: fields of each request, such as `model`.
        headers: headers of each request.
        stop: set from outside, it ends the load early.
        progress: called a few times a second.
        probe: path; any response to it shows that a connection was established.
    """
    async with AsyncExitStack() as stack:
        clients = _Clients(forward.url, forward.headers | headers, asyncio.Semaphore(shape.concurrency), stack)
        first = min(shape.concurrency, shape.requests or shape.concurrency)
        await clients.warm(min(first, WARM if shape.rate is None else WARM_AT_RATE), probe)
        return await _Driver(clients, forward, shape, options, stop, progress).run()


@dataclass(slots=True)
class _Clients:
    """Clients with one connection each, created on demand. The last one that was released is reused first: the fewest
    connections stay in use, as making one takes several round trips to the cluster."""

    url: str
    headers: dict[str, str]
    free: asyncio.Semaphore
    stack: AsyncExitStack
    idle: list[Client] = field(default_factory=list)

    async def take(self) -> Client:
        """Waits for a free client."""
        await self.free.acquire()
        return self.idle.pop() if self.idle else await self.stack.enter_async_context(Client(self.url, self.headers))

    def give(self, client: Client) -> None:
        """Releases a client."""
        self.idle.append(client)
        self.free.release()

    async def warm(self, number: int, probe: str) -> None:
        """Opens that many connections. A failure shows when a request needs the connection."""
        clients = [await self.take() for _ in range(number)]
        await asyncio.gather(*(_connected(client, probe) for client in clients), return_exceptions=True)
        for client in clients:
            self.give(client)


async def _connected(client: Client, probe: str) -> None:
    async with client.http.get(probe) as response:
        await response.read()


@dataclass(slots=True)
class _Driver:
    clients: _Clients
    forward: PortForward
    shape: Shape
    options: dict[str, Any]
    stop: asyncio.Event
    progress: Callable[[Load], None]
    load: Load = field(default_factory=Load)
    started: float = 0.0

    async def run(self) -> Load:
        self.started, cpu = time.monotonic(), time.process_time()
        sending, stopped = asyncio.create_task(self._send()), asyncio.create_task(self.stop.wait())
        watch = asyncio.create_task(self._watch())
        ends: list[asyncio.Task[Any]] = [sending, stopped]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self.load.stopped = not sending.done()
        finally:
            for task in (*ends, watch):
                task.cancel()
            ended = await asyncio.gather(*ends, watch, return_exceptions=True)
        for one in ended:
            if isinstance(one, BaseException) and not isinstance(one, asyncio.CancelledError):
                raise one
        self.load.seconds = self._now()
        self.load.cpu = time.process_time() - cpu
        return self.load

    def _now(self) -> float:
        return time.monotonic() - self.started

    async def _send(self) -> None:
        """Sends each request when it is due, or when a client is free for it."""
        async with asyncio.TaskGroup() as under_way:
            for draw in draws(self.shape):
                if self.shape.rate is not None:
                    await asyncio.sleep(max(0.0, draw.due - self._now()))
                client = await self.clients.take()
                seconds = self.shape.seconds
                if self.shape.rate is None and seconds is not None and self._now() >= seconds:
                    return
                under_way.create_task(self._serve(client, draw))

    async def _serve(self, client: Client, draw: Draw) -> None:
        self.load.in_flight += 1
        try:
            result = await self._request(client, draw)
        finally:
            self.load.in_flight -= 1
        self.load.results.append(result)
        if result.error and self.shape.rate is None:
            await asyncio.sleep(PAUSE_SECONDS)
        self.clients.give(client)

    async def _request(self, client: Client, draw: Draw) -> Result:
        sent = self._now()
        due = draw.due if self.shape.rate is not None else sent
        answer, error = Answer(self.started + due), ""
        try:
            await client.ask(draw.body(self.options), answer)
        except DisconnectedError as problem:
            error = (self.forward.problem or problem).what
        except AnswerError as problem:
            error = problem.what
        failed = bool(error)
        return Result(
            due=due,
            sent=sent,
            ended=self._now(),
            ttft=None if failed else answer.ttft,
            tpot=None if failed else answer.tpot,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.completion_tokens,
            error=error,
        )

    async def _watch(self) -> None:
        """Measures event loop lag, and reports progress."""
        number = 0
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK)
            self.load.lags.append(time.monotonic() - before - _TICK)
            number += 1
            if number % 5 == 0:
                self.load.seconds = self._now()
                self.progress(self.load)
