"""ADS server: sends the newest snapshot to each Envoy, and tracks accepted and rejected versions. State of
the world: https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.any_pb2 import Any as AnyMessage

from inflight_gateway.proxy.snapshot import ORDER, Resources, Snapshot


@dataclass(slots=True, eq=False)
class Subscription:
    """State of a type of resources on a stream: requested names, sent versions, and acknowledgements.

    Attributes:
        names: requested names; empty: all.
        nonce: nonce of the last response; empty: none sent.
        sent: version of the last response.
        acknowledged: the last version that Envoy accepted.
        due: a request of Envoy has no response yet.
    """

    names: frozenset[str] = frozenset()
    nonce: str = ""
    sent: str = ""
    acknowledged: str = ""
    due: bool = True
    _count: int = field(default=0, repr=False)

    def requested(self, names: Sequence[str], nonce: str, refused: bool) -> bool:
        """Processes a request. Returns whether it answers the last response. A rejected version still counts as sent:
        it would be rejected again.

        Args:
            nonce: nonce of the response that it answers; empty in the first request of a stream.
            refused: the request carries an error.
        """
        if nonce and nonce != self.nonce:
            return False  # Sent before a newer response arrived, which gets its own answer.
        asked = frozenset(names)
        if not nonce or asked - self.names or (self.names and not asked):
            self.due = True
        self.names = asked
        if nonce and not refused:
            self.acknowledged = self.sent
        return bool(nonce)

    def response(self, resources: Resources) -> list[AnyMessage] | None:
        """Returns the resources to send now, and puts the nonce of the response in `nonce`; None: nothing to send."""
        if not self.due and self.sent == resources.version:
            return None
        self._count += 1
        self.due, self.sent, self.nonce = False, resources.version, str(self._count)
        by_name = resources.by_name
        wanted = by_name.keys() & self.names if self.names else by_name.keys()
        return [by_name[name] for name in by_name if name in wanted]


_log = logging.getLogger(__name__)

Listener = Callable[[str, str], None]
"""Called with a type URL and a version of its resources."""


class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):  # type: ignore[misc]  # xds-protos has no types
    """Serves the Envoys of this pod: one, except for a short time while its container restarts.

    Args:
        taken: called when Envoy accepts a version.
        refused: called when Envoy rejects a version and keeps the previous one.
    """

    def __init__(self, first: Snapshot, taken: Listener, refused: Listener) -> None:
        self._snapshot = first
        self._taken = taken
        self._refused = refused
        self._streams: set[_Stream] = set()

    def publish(self, snapshot: Snapshot) -> None:
        """Sends the changes to all Envoys."""
        self._snapshot = snapshot
        for stream in self._streams:
            stream.changed.set()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def acknowledged(self, type_url: str) -> bool:
        """Returns whether a connected Envoy has accepted a version of this type."""
        subscriptions = (stream.subscriptions.get(type_url) for stream in self._streams)
        return any(one is not None and one.acknowledged for one in subscriptions)

    async def StreamAggregatedResources(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        stream = _Stream(self._taken, self._refused)
        reader = asyncio.create_task(stream.read(requests))
        self._streams.add(stream)
        try:
            while not reader.done():
                stream.changed.clear()
                for response in stream.responses(self._snapshot):
                    yield response
                await stream.changed.wait()
            await reader
        finally:
            self._streams.discard(stream)
            reader.cancel()


class _Stream:
    def __init__(self, taken: Listener, refused: Listener) -> None:
        self.subscriptions: defaultdict[str, Subscription] = defaultdict(Subscription)
        self.changed = asyncio.Event()
        self._taken = taken
        self._refused = refused

    async def read(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                self._take(request)
                self.changed.set()
        finally:
            self.changed.set()

    def _take(self, request: DiscoveryRequest) -> None:
        subscription, type_url = self.subscriptions[request.type_url], request.type_url
        refused = request.HasField("error_detail")
        if not subscription.requested(request.resource_names, request.response_nonce, refused):
            return
        if refused:
            _log.error("Envoy refuses version %s of %s: %s", subscription.sent, type_url, request.error_detail.message)
            self._refused(type_url, subscription.sent)
        else:
            self._taken(type_url, subscription.sent)

    def responses(self, snapshot: Snapshot) -> list[Any]:
        responses = []
        for type_url in ORDER:
            subscription = self.subscriptions.get(type_url)
            if subscription is None:
                continue
            resources = subscription.response(snapshot[type_url])
            if resources is not None:
                responses.append(
                    DiscoveryResponse(
                        version_info=subscription.sent,
                        type_url=type_url,
                        nonce=subscription.nonce,
                        resources=resources,
                    )
                )
        return responses
