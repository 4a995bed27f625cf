"""The port on which other gateways ask for endpoints of one InferencePool.

The endpoint picker protocol does not name the pool of a request: it takes a picker for each pool. One picker serves all
pools here, and the port tells them apart, which works with every gateway. The operator computes the same port, as the
target of the picker's Service of each pool.
"""

from __future__ import annotations

from zlib import crc32

from inflight_gateway.types import ServiceKey

POOL_PORTS = range(20_000, 20_256)
"""Below the ports that kernels give to outgoing connections."""


def pool_port(key: ServiceKey) -> int:
    """The same in all gateway pods without agreement between them. Services can share one: then Host, model and allowed
    endpoints decide between them."""
    return POOL_PORTS[crc32(str(key).encode()) % len(POOL_PORTS)]
