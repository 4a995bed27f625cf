"""Requests of the other gateway pods to each endpoint, from their state streams."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from time import monotonic

import aiohttp

from inflight_base.signing import PEER_SIGNATURE, get_message
from inflight_gateway.state.load import SentLoad, read_line
from inflight_gateway.state.stream import FULL_SECONDS
from inflight_gateway.tenants.gateway_key import GatewayKey

logger = logging.getLogger(__name__)

WATCH = "/v1/state?watch=1"

SILENT_SECONDS = FULL_SECONDS + 2.0
"""A peer without data for this time is not live: full lines are sent at shorter intervals."""

MAX_LINE = 2**22
"""Longest line, in bytes. A line has about 80 for each endpoint and 150 for each service."""

MIN_BACK_OFF, MAX_BACK_OFF = 0.2, 5.0
"""Seconds between two connections to a peer that fails; each wait has a random part."""

HeardFrom = Callable[[str, Mapping[str, SentLoad]], None]

_TIMEOUT = aiohttp.ClientTimeout(connect=2.0, sock_read=SILENT_SECONDS)


class _Peer:
    """Last state of one peer.

    Attributes:
        gateway: name of its pod; empty before its first line.
        heard: time of its last line, in seconds.
    """

    def __init__(self) -> None:
        self.gateway = ""
        self.heard = float("-inf")

    def take(self, line: bytes, now: float) -> tuple[str, Mapping[str, SentLoad]]:
        """Returns the name of its pod and what a line says of the endpoints.

        Raises:
            ValueError: it is no line of a state stream.
        """
        read = read_line(line)
        self.gateway, self.heard = read.gateway, now
        return read.gateway, read.loads.endpoints


class Peers:
    """Follows the other gateway pods, one connection each.

    Args:
        http: a session of the caller.
        heard_from: called after each line with the name of its gateway pod and the endpoints in the line: in lines that
            are not full, those whose load has changed.
        key: signs the calls; without one nothing is heard.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        heard_from: HeardFrom,
        key: GatewayKey,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._http = http
        self._heard_from = heard_from
        self._key = key
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, addresses: Collection[str]) -> None:
        """Sets the peers. Addresses are IP:PORT of their state ports, without this pod's own."""
        for gone in self._tasks.keys() - set(addresses):
            self._tasks.pop(gone).cancel()
            del self._peers[gone]
        for address in addresses:
            if address not in self._tasks:
                peer = self._peers[address] = _Peer()
                self._tasks[address] = asyncio.create_task(self._follow(address, peer), name=f"peer {address}")

    def live(self) -> dict[str, str]:
        """Names of the known gateway pods, with their addresses."""
        oldest = self._clock() - SILENT_SECONDS
        return {peer.gateway: address for address, peer in self._peers.items() if peer.heard >= oldest}

    def close(self) -> None:
        self.keep(())

    async def _follow(self, address: str, peer: _Peer) -> None:
        failures = 0
        while True:
            connected = self._clock()
            try:
                async for line in self._lines(address):
                    self._heard_from(*peer.take(line, self._clock()))
                    failures = 0
                reason = "the stream ended"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                reason = str(error) or type(error).__name__
            except Exception:
                # The peer is still followed; this is a gateway bug.
                logger.exception("a line of gateway peer %s was not taken", address)
                reason = "a fault of this gateway"
            failures += 1
            log = logger.info if failures == 1 else logger.debug
            log("gateway peer %s: %s after %.1f s", address, reason[:200], self._clock() - connected)
            wait = min(MAX_BACK_OFF, MIN_BACK_OFF * 2 ** min(failures, 10))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _lines(self, address: str) -> AsyncIterator[bytes]:
        """Raises: ValueError: another status than 200, or a line above `MAX_LINE`."""
        headers = {PEER_SIGNATURE: self._key.sign(get_message(WATCH))}
        async with self._http.get(f"http://{address}{WATCH}", headers=headers, timeout=_TIMEOUT) as answer:
            if answer.status != 200:
                raise ValueError(f"HTTP {answer.status}")
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > MAX_LINE:
                    raise ValueError(f"a line of more than {MAX_LINE} bytes")
