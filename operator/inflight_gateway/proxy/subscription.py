"""One type of resources on one ADS stream: requested names, sent versions, and acknowledgements. State of the world:
https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.any_pb2 import Any as AnyMessage

from inflight_gateway.proxy.snapshot import Resources


@dataclass(slots=True, eq=False)
class Subscription:
    """Attributes:
    names: requested; empty: all.
    nonce: of the last response; empty: none sent.
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
            nonce: of the response that it answers; empty in the first request of a stream.
            refused: it carries an error.
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
        """The response to send now; None: nothing. The next nonce is then in `nonce`."""
        if not self.due and self.sent == resources.version:
            return None
        self._count += 1
        self.due, self.sent, self.nonce = False, resources.version, str(self._count)
        by_name = resources.by_name
        wanted = by_name.keys() & self.names if self.names else by_name.keys()
        return [by_name[name] for name in by_name if name in wanted]
