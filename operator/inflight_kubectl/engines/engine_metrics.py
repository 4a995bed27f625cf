"""Metrics of single engines, from their /metrics pages through port-forwards.

Percentiles cover the observations between two reads, so a pod's first read has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inflight_base.manifest.engines import EngineType
from inflight_base.page import reader
from inflight_base.page.names import renamed
from inflight_base.page.reader import Page, PageError, PageReader
from inflight_kubectl.output import Problem, described

if TYPE_CHECKING:
    import httpx

    from inflight_kubectl.access.cluster import Cluster
    from inflight_kubectl.access.pods import Pod
    from inflight_kubectl.access.resources import Service
    from inflight_kubectl.engines.engine_access import PortForward

MAX_BYTES = 4 << 20
"""Maximum bytes of a page; engines have about 60 KiB."""

WINDOW_SECONDS = 30.0
"""Seconds that percentiles and rates look back."""

READER = PageReader(
    (
        reader.RUNNING,
        reader.WAITING,
        reader.KV_USAGE,
        reader.GENERATION_TOKENS,
        reader.PREEMPTIONS,
        reader.MAX_NUM_SEQS,
        reader.MAX_NUM_BATCHED_TOKENS,
        reader.CACHE_CONFIG,
        *reader.TIERS,
    ),
    (reader.TTFT, reader.TPOT),
)


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of the KV cache behind the devices of one engine or more.

    Attributes:
        name: `host` or `disk`.
        blocks: blocks that it holds.
        hit_tokens: tokens loaded from it since the start of the engines: from the disk, to host memory.
        bytes_per_second: measured speed of loads, of the slowest engine; None: none has measured it.
        failed_blocks, dropped_blocks: blocks whose loads failed, and that were not written.
        refused: requests that computed what it has, by reason.
    """

    name: str
    blocks: int
    hit_tokens: int
    bytes_per_second: float | None
    failed_blocks: int
    dropped_blocks: int
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tiers of all engines of a service.

    Attributes:
        problem: reason why pods are missing; None if none is.
    """

    tiers: tuple[Tier, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Current metrics of one engine; latencies in seconds over the last half minute, None without a request in it.

    Attributes:
        tiers: those behind the device that it has.
        problem: reason why there are no current metrics; the rest is then from the last successful read.
    """

    running: int | None = None
    waiting: int | None = None
    kv: float | None = None
    tokens_per_s: float | None = None
    preemptions: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    ttft_p95: float | None = None
    tpot_p95: float | None = None
    tiers: tuple[Tier, ...] = ()
    problem: str | None = None


def figures(pages: Sequence[tuple[float, Page]]) -> Figures:
    """Returns the figures of one engine from its pages, oldest first, each after its time on the steady clock; at least
    one."""
    (begin, first), (end, last) = pages[0], pages[-1]
    if last.total(reader.GENERATION_TOKENS) < first.total(reader.GENERATION_TOKENS):
        begin, first = end, last  # the engine process restarted
    elapsed = end - begin

    def grown(name: str) -> float:
        return last.total(name) - first.total(name)

    def p95(name: str) -> float | None:
        return last.histogram(name).since(first.histogram(name)).percentile(0.95)

    return Figures(
        running=last.count(reader.RUNNING),
        waiting=last.count(reader.WAITING),
        kv=last.largest(reader.KV_USAGE),
        tokens_per_s=grown(reader.GENERATION_TOKENS) / elapsed if elapsed > 0 else None,
        preemptions=int(grown(reader.PREEMPTIONS)) if elapsed > 0 else None,
        max_num_seqs=last.whole(reader.MAX_NUM_SEQS),
        max_num_batched_tokens=last.whole(reader.MAX_NUM_BATCHED_TOKENS),
        ttft_p95=p95(reader.TTFT),
        tpot_p95=p95(reader.TPOT),
        tiers=_tiers(last),
    )


def _tiers(page: Page) -> tuple[Tier, ...]:
    blocks, hits, failed, dropped, speeds, refused = (page.by_key(name) for name in reader.TIERS)
    return tuple(
        Tier(
            name=name,
            blocks=int(held),
            hit_tokens=int(hits.get(name, 0)) * page.block_size(),
            bytes_per_second=speeds.get(name) or None,
            failed_blocks=int(failed.get(name, 0)),
            dropped_blocks=int(dropped.get(name, 0)),
            refused={reason: int(count) for reason, count in refused.items()} if name == "disk" else {},
        )
        for name, held in blocks.items()
    )


def together(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """Returns the tiers of all engines, one for each name."""
    by_name: dict[str, list[Tier]] = {}
    for tier in tiers:
        by_name.setdefault(tier.name, []).append(tier)
    return tuple(
        Tier(
            name=name,
            blocks=sum(one.blocks for one in same),
            hit_tokens=sum(one.hit_tokens for one in same),
            bytes_per_second=min((one.bytes_per_second for one in same if one.bytes_per_second), default=None),
            failed_blocks=sum(one.failed_blocks for one in same),
            dropped_blocks=sum(one.dropped_blocks for one in same),
            refused={reason: sum(one.refused.get(reason, 0) for one in same) for reason in same[0].refused},
        )
        for name, same in by_name.items()
    )


def service_tiers(cluster: Cluster, service: Service, pods: Sequence[Pod]) -> Tiers | None:
    """Returns the tiers of a service's ready pods; None for a service without `engine.kvCache.swap`."""
    swap = ((service.spec.get("engine") or {}).get("kvCache") or {}).get("swap")
    if swap in (None, 0, "0"):
        return None
    engines = EngineReader(cluster)
    try:
        found = engines.read(pods)
    finally:
        engines.close()
    silent = [f"pod {name} cannot be read: {one.problem}" for name, one in found.items() if one.problem]
    return Tiers(together(tier for one in found.values() for tier in one.tiers), silent[0] if silent else None)


def metrics_port(pod: Pod) -> int:
    """Returns the port of a pod's metrics page: of our engines the admin port, which has it also where `servingMetrics`
    is off."""
    return pod.engine.metrics_port or pod.admin_port or pod.http_port


def page_text(http: httpx.Client, path: str = "/metrics") -> str:
    """Returns the metrics page of an engine.

    Raises:
        PageError: it is larger than `MAX_BYTES`.
        httpx.HTTPError: no response, or an error.
    """
    content = bytearray()
    with http.stream("GET", path) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > MAX_BYTES:
                raise PageError(f"the page is larger than {MAX_BYTES >> 20} MiB")
    return content.decode(errors="replace")


def known_page(http: httpx.Client, engine: EngineType) -> str:
    """Returns the metrics page of an engine, with the names that Inflight reads. Raises: as `page_text`."""
    return renamed(page_text(http, engine.metrics_path).encode(), engine.metrics).decode()


class EngineReader:
    """Reads the pages of a service's pods, with one port-forward for each pod that stays open between reads.

    For one thread; `close` may be called from another.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[str, tuple[PortForward, httpx.Client]] = {}
        self._pages: dict[str, list[tuple[float, Page]]] = {}
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="engine metrics")

    def read(self, pods: Sequence[Pod]) -> dict[str, Figures]:
        """Reads the metrics of the ready pods; returns them by the pod's name."""
        serving = [pod for pod in pods if pod.serves]
        for uid in self._open.keys() - {pod.uid for pod in serving}:
            self._forget(uid)
        return dict(zip((pod.name for pod in serving), self._pool.map(self._figures, serving), strict=True))

    def close(self) -> None:
        """Ends all port-forwards."""
        for uid in list(self._open):
            self._forget(uid)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _figures(self, pod: Pod) -> Figures:
        pages = self._pages.setdefault(pod.uid, [])
        try:
            pages.append(self._page(pod))
        except (Problem, ValueError, KeyError, OSError) as error:
            what = str(error) if isinstance(error, PageError) else described(error)
            return replace(figures(pages), problem=what) if pages else Figures(problem=what)
        while len(pages) > 2 and pages[-1][0] - pages[1][0] >= WINDOW_SECONDS:
            pages.pop(0)
        return figures(pages)

    def _page(self, pod: Pod) -> tuple[float, Page]:
        import httpx

        from inflight_kubectl.engines.engine_access import forward_to_pod

        if pod.uid not in self._open:
            forward = forward_to_pod(self._cluster, pod, metrics_port(pod))
            self._open[pod.uid] = forward, forward.client(timeout=5.0)
        forward, http = self._open[pod.uid]
        try:
            text = known_page(http, pod.engine)
        except httpx.HTTPError as error:
            self._forget(pod.uid, pages=False)
            raise forward.problem or Problem(f"no answer: {str(error) or type(error).__name__}") from error
        return time.monotonic(), READER.read(text)

    def _forget(self, uid: str, *, pages: bool = True) -> None:
        opened = self._open.pop(uid, None)
        if opened is not None:
            opened[1].close()
            opened[0].close()
        if pages:
            self._pages.pop(uid, None)
