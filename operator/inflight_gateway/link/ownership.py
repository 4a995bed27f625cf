"""The gateway pod that owns each service: its picker alone holds, picks and counts for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from inflight_base.manifest.keys import ServiceKey


class Owners:
    """Shares services out among gateway pods, the same way in all processes with the same arguments: rendezvous hashing
    (Thaler and Ravishankar 1996), so that a pod that comes or goes moves its own services only. Services that are large
    beside the others are placed first, so that no pod has two of them while another has none.

    Args:
        engines: number of engines of each service; 0 for services without any.
        pods: names of the gateway pods.
    """

    def __init__(self, engines: Mapping[ServiceKey, int], pods: Collection[str]) -> None:
        self._engines = engines
        self._pods = tuple(sorted(pods))

    def owner(self, service: ServiceKey, without: Collection[str] = ()) -> str | None:
        """Returns the pod that owns a service. Args: without: pods that do not count. None: no pod is left."""
        raise NotImplementedError
