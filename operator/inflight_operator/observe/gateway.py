"""State streams of the gateway's pods: held and in-flight requests of every service.

One task follows each pod. The pods are those of the gateway's EndpointSlices, listed twice a second: there are few,
and a watch of one Service in a namespace that the operator may not manage would need a separate client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, time

import aiohttp

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import GATEWAY_HTTP_PORT, GATEWAY_STATE_PORT, HTTP_PORT_NAME
from inflight_base.manifest.slices import GatewayAddress, address_of, endpoints
from inflight_base.signing import PEER_SIGNATURE, get_message, signed
from inflight_operator.clock import pause
from inflight_operator.observe.gateway_lines import MAX_ERROR, GatewayStreamError, lines, read_line
from inflight_operator.observe.gateway_view import GatewayReport, GatewayView, gateway_view

logger = logging.getLogger(__name__)

WATCH = "/v1/state?watch=1"

LOOKUP_SECONDS = 0.5
"""Seconds between two lists of the gateway's pods."""

SILENCE_SECONDS = 15.0
"""Seconds without data after which a stream counts as broken: a gateway writes at least every 5 s."""

CONNECT_SECONDS = 3.0

LONGEST_PAUSE = 5.0
"""Maximum seconds between two connection attempts to a pod: while it is not connected, no service scales to zero."""

SETTLE_SECONDS = 3.0
"""Seconds to wait for connections to the gateway's pods before the first rounds: else each service would briefly report
its gateway as unavailable."""

_NO_TIMEOUT = aiohttp.ClientTimeout()
"""Timeouts of a stream, which has no end; only its silence is limited."""


@dataclass(frozen=True, slots=True)
class GatewayPod:
    """An endpoint of the gateway's Service.

    Attributes:
        url: `http://IP:PORT`.
        takes_requests: whether it may have requests: it is or was ready. A starting pod has none.
    """

    name: str
    url: str
    takes_requests: bool


@dataclass(slots=True, eq=False)
class _Stream:
    """A followed pod.

    Attributes:
        since: when the connection began, on the steady clock.
        reports: reports of the connection; None before its first full line and while disconnected.
        error: why there is no connection.
    """

    pod: GatewayPod
    task: asyncio.Task[None] | None = None
    since: float = 0.0
    reports: dict[ServiceKey, GatewayReport] | None = None
    error: str = ""


@dataclass(slots=True)
class GatewayReader:
    """Follows the gateway's pods. Single-threaded: everything happens in the event loop.

    Args:
        http: client for the streams.
        slices: lists the EndpointSlices of the gateway's Service.
        held: called with a service when requests of it begin to wait at a gateway pod.
        keys: returns the gateway's keys, which sign the requests for streams.
        moved: called when `addresses` changes.

    Attributes:
        addresses: those of the ready pods at the last list; None before the first one.
    """

    http: aiohttp.ClientSession
    slices: Callable[[], Awaitable[Sequence[Manifest]]]
    held: Callable[[ServiceKey], Awaitable[None]]
    keys: Callable[[], Sequence[bytes]]
    moved: Callable[[], None] = lambda: None
    clock: Callable[[], float] = monotonic
    addresses: tuple[GatewayAddress, ...] | None = None
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _lookup_error: str = ""
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Follows until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        slices = await self.slices()
                        before, self.addresses = self.addresses, gateway_addresses(slices)
                        if self.addresses != before:
                            self.moved()
                        self._keep(gateway_pods(slices), tasks)
                        self._lookup_error = ""
                    except KubeApiError as error:
                        self._lookup_error = f"cannot look up the gateway's pods: {error}"
                        logger.warning("%s", self._lookup_error)
                    await asyncio.sleep(LOOKUP_SECONDS)
        finally:
            self._streams.clear()

    async def settled(self, within: float = SETTLE_SECONDS) -> None:
        """Returns when all pods of the first list are connected, or after `within` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._settled.wait()

    def view(self, key: ServiceKey) -> GatewayView:
        """Returns the current state of a service."""
        reported = {
            pod: one.reports[key]
            for pod, one in self._streams.items()
            if one.reports is not None and key in one.reports
        }
        pods = sum(
            one.pod.takes_requests or (one.reports is not None and key in one.reports) for one in self._streams.values()
        )
        silent = (one for one in self._streams.values() if one.pod.takes_requests)
        unheard = (_silence(one, key) for one in silent if one.reports is None or key not in one.reports)
        # While the list of pods is unknown, there may be one more.
        return gateway_view(reported, pods + bool(self._lookup_error), self.clock(), next(unheard, self._lookup_error))

    @property
    def pods(self) -> tuple[int, int]:
        """Numbers of connected pods and of all pods."""
        return sum(one.reports is not None for one in self._streams.values()), len(self._streams)

    def _keep(self, pods: Mapping[str, GatewayPod], tasks: asyncio.TaskGroup) -> None:
        for name, stream in list(self._streams.items()):
            known = pods.get(name)
            if known is None or known.url != stream.pod.url:
                del self._streams[name]
                if stream.task is not None:
                    stream.task.cancel()
            else:
                stream.pod = known
        for name in pods.keys() - self._streams.keys():
            stream = self._streams[name] = _Stream(pods[name])
            stream.task = tasks.create_task(self._follow(stream))
        self._settle()

    def _settle(self) -> None:
        if all(one.reports is not None for one in self._streams.values()):
            self._settled.set()

    async def _follow(self, stream: _Stream) -> None:
        failures = 0
        while True:
            try:
                await self._read(stream)
                error = "ended its state stream"
            except TimeoutError:
                error = "does not answer"
            except (aiohttp.ClientError, OSError, GatewayStreamError) as problem:
                error = str(problem)[:MAX_ERROR] or type(problem).__name__
            except Exception as problem:
                # Data of one pod must not affect the others: an operator bug is reported as this pod's error, and
                # logged.
                logger.exception("following gateway pod %s failed", stream.pod.name)
                error = f"{type(problem).__name__}: {str(problem)[:MAX_ERROR]}"
            failures = 1 if stream.reports is not None else failures + 1
            if failures == 1 and stream.pod.takes_requests:
                logger.warning("gateway pod %s is not heard: %s", stream.pod.name, error)
            stream.reports, stream.error = None, error
            await asyncio.sleep(min(pause(failures), LONGEST_PAUSE))

    async def _read(self, stream: _Stream) -> None:
        """Processes lines until the stream ends.

        Raises:
            TimeoutError: the pod does not answer, or sends nothing.
            aiohttp.ClientError: the connection is lost.
            GatewayStreamError: the data is no state stream.
        """
        headers = {PEER_SIGNATURE: signed(self.keys(), get_message(WATCH), time())}
        url = f"{stream.pod.url}{WATCH}"
        async with asyncio.timeout(CONNECT_SECONDS) as limit:
            async with self.http.get(url, headers=headers, allow_redirects=False, timeout=_NO_TIMEOUT) as response:
                if response.status != 200:
                    raise GatewayStreamError(f"HTTP {response.status}")
                stream.since = self.clock()
                limit.reschedule(asyncio.get_running_loop().time() + SILENCE_SECONDS)
                async for line in lines(response.content.iter_any()):
                    limit.reschedule(asyncio.get_running_loop().time() + SILENCE_SECONDS)
                    for key in self._take(stream, line):
                        await self.held(key)

    def _take(self, stream: _Stream, line: bytes) -> list[ServiceKey]:
        """Processes a line; returns the services whose requests this pod started to hold."""
        full, reported = read_line(line, self.clock(), stream.since)
        before = stream.reports or {}
        begun = [key for key, one in reported.items() if one.held and not (key in before and before[key].held)]
        if full:
            stream.reports = reported
        elif stream.reports is None:
            raise GatewayStreamError("the first line is not a full one")
        else:
            stream.reports.update(reported)
        stream.error = ""
        self._settle()
        return begun


def gateway_pods(slices: Sequence[Manifest]) -> dict[str, GatewayPod]:
    """The pods in EndpointSlices of the gateway's Service, by name."""
    pods = {}
    for one in (each for manifest in slices for each in endpoints(manifest)):
        name, url = one.pod or one.ip, f"http://{address_of(one.ip, GATEWAY_STATE_PORT)}"
        pods[name] = GatewayPod(name, url, one.ready or one.serving or one.terminating)
    return pods


def gateway_addresses(slices: Sequence[Manifest]) -> tuple[GatewayAddress, ...]:
    """The ready endpoints in EndpointSlices of the gateway's Service, sorted by address."""
    found = {
        GatewayAddress(one.ip, _http_port(manifest))
        for manifest in slices
        for one in endpoints(manifest)
        if one.ready and not one.terminating
    }
    return tuple(sorted(found, key=lambda one: one.address))


def _http_port(manifest: Manifest) -> int:
    ports = (one.get("port") for one in manifest.get("ports") or () if one.get("name") == HTTP_PORT_NAME)
    return next(ports, None) or GATEWAY_HTTP_PORT


def _silence(stream: _Stream, key: ServiceKey) -> str:
    if stream.reports is not None:
        return f"gateway pod {stream.pod.name} does not know {key} yet"
    return f"gateway pod {stream.pod.name} is not heard: {stream.error or 'it is being connected to'}"
