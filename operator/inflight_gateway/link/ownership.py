"""The gateway pod that owns each service: its picker alone holds, picks and counts for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

from inflight_base.manifest.keys import ServiceKey

LARGE_ENGINES = 16
"""Fewest engines of a large service. A service that changes its owner loses the index of its prefixes, so small ones
do not move when they scale."""

LARGE_SHARE = 1 / 16
"""Smallest part of all engines that belong to a large service, by coarse sizes: there are at most 64 of them."""

_COARSE_BITS = 2
"""Sizes are rounded down to powers of 2 ** 2: a service seldom changes its size."""

_MAX_KEPT = 65_536
"""Owners of small services that are kept: those of 5,000 services for a dozen sets of pods."""


class Owners:
    """Shares services out among gateway pods, the same way in all processes with the same arguments: rendezvous hashing
    (Thaler and Ravishankar 1996), so that a pod that comes or goes moves its own services only. Services that are large
    beside the others are placed first, so that no pod has two of them while another has none: each at the first of its
    pods where the engines of large services are the fewest.

    Two are equal if every service has the same owner in both.

    Args:
        engines: number of engines of each service; 0 for services without any.
        pods: names of the gateway pods.
    """

    def __init__(self, engines: Mapping[ServiceKey, int], pods: Collection[str]) -> None:
        self._pods = tuple(sorted(pods))
        self._large = _large(engines)
        self._placed: dict[tuple[str, ...], dict[ServiceKey, str]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owners) and (self._pods, self._large) == (other._pods, other._large)

    def owner(self, service: ServiceKey, without: Collection[str] = ()) -> str | None:
        """Returns the pod that owns a service. Args: without: pods that do not count. None: no pod is left."""
        pods = tuple(pod for pod in self._pods if pod not in without) if without else self._pods
        if not pods:
            return None
        placed = self._placed.get(pods)
        if placed is None:
            placed = self._placed[pods] = _place(self._large, pods)
        return placed.get(service) or _first(service, pods)


def _large(engines: Mapping[ServiceKey, int]) -> tuple[tuple[ServiceKey, int], ...]:
    """Returns the large services with their coarse sizes, the largest first."""
    least = max(LARGE_ENGINES, _coarse(sum(_coarse(count) for count in engines.values())) * LARGE_SHARE)
    sizes = ((service, _coarse(count)) for service, count in engines.items() if count >= LARGE_ENGINES)
    return tuple(sorted((one for one in sizes if one[1] >= least), key=lambda one: (-one[1], one[0])))


def _coarse(engines: int) -> int:
    return 1 << (engines.bit_length() - 1) // _COARSE_BITS * _COARSE_BITS if engines else 0


def _place(large: Iterable[tuple[ServiceKey, int]], pods: tuple[str, ...]) -> dict[ServiceKey, str]:
    placed: dict[ServiceKey, str] = {}
    load = dict.fromkeys(pods, 0)
    for service, size in large:
        fewest = min(load.values())
        pod = _first(service, tuple(pod for pod in pods if load[pod] == fewest))
        placed[service] = pod
        load[pod] += size
    return placed


@lru_cache(maxsize=_MAX_KEPT)
def _first(service: ServiceKey, pods: tuple[str, ...]) -> str:
    """Returns the first one of a service's pods by rendezvous hashing."""
    return max(pods, key=lambda pod: blake2b(f"{pod}/{service}".encode(), digest_size=8).digest())
