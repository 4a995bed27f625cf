"""Metrics of single engines, from their /metrics pages through port-forwards.

Percentiles cover the observations between two reads, so a pod's first read has none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inflight_base.page import reader
from inflight_base.page.histogram import Histogram
from inflight_base.page.reader import PageError, PageReader
from inflight_kubectl.output import Problem, described

if TYPE_CHECKING:
    import httpx

    from inflight_kubectl.cluster import Cluster
    from inflight_kubectl.engine_access import PortForward
    from inflight_kubectl.pods import Pod

MAX_BYTES = 4 << 20
"""Largest page that is read; engines have about 60 KiB."""

WINDOW_SECONDS = 30.0
"""Percentiles and rates look back this far."""

_READER = PageReader(
    (
        reader.RUNNING,
        reader.WAITING,
        reader.KV_USAGE,
        reader.GENERATION_TOKENS,
        reader.PREEMPTIONS,
        reader.MAX_NUM_SEQS,
        reader.MAX_NUM_BATCHED_TOKENS,
        f"{reader.TTFT}_bucket",
        f"{reader.TPOT}_bucket",
    )
)


@dataclass(frozen=True, slots=True)
class Counts:
    """One read of one engine; counters are from the start of its process.

    Attributes:
        at: on the steady clock.
    """

    at: float
    running: int
    waiting: int
    kv: float
    generated: float
    preemptions: float
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    ttft: Histogram
    tpot: Histogram


@dataclass(frozen=True, slots=True)
class Figures:
    """Current metrics of one engine; latencies in seconds over the last half minute, None without a request in it.

    Attributes:
        problem: why there are no current metrics; the rest is then from the last successful read.
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
    problem: str | None = None


def parse_page(text: str, at: float) -> Counts:
    """The page in Prometheus' text format.

    Raises:
        PageError: the page is not an engine's.
    """
    page = _READER.read(text)
    return Counts(
        at=at,
        running=int(page.total(reader.RUNNING)),
        waiting=int(page.total(reader.WAITING)),
        kv=page.largest(reader.KV_USAGE) or 0.0,
        generated=page.total(reader.GENERATION_TOKENS),
        preemptions=page.total(reader.PREEMPTIONS),
        max_num_seqs=page.whole(reader.MAX_NUM_SEQS),
        max_num_batched_tokens=page.whole(reader.MAX_NUM_BATCHED_TOKENS),
        ttft=page.histogram(reader.TTFT),
        tpot=page.histogram(reader.TPOT),
    )


def figures(pages: Sequence[Counts]) -> Figures:
    """Figures of one engine from its pages, oldest first; at least one."""
    first, last = pages[0], pages[-1]
    if last.generated < first.generated:
        first = last  # the engine process restarted
    elapsed = last.at - first.at
    return Figures(
        running=last.running,
        waiting=last.waiting,
        kv=last.kv,
        tokens_per_s=(last.generated - first.generated) / elapsed if elapsed > 0 else None,
        preemptions=int(last.preemptions - first.preemptions) if elapsed > 0 else None,
        max_num_seqs=last.max_num_seqs,
        max_num_batched_tokens=last.max_num_batched_tokens,
        ttft_p95=last.ttft.since(first.ttft).percentile(0.95),
        tpot_p95=last.tpot.since(first.tpot).percentile(0.95),
    )


def page_text(http: httpx.Client) -> str:
    """The metrics page of an engine.

    Raises:
        PageError: it is larger than `MAX_BYTES`.
        httpx.HTTPError: no response, or an error.
    """
    content = bytearray()
    with http.stream("GET", "/metrics") as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > MAX_BYTES:
                raise PageError(f"the page is larger than {MAX_BYTES >> 20} MiB")
    return content.decode(errors="replace")


class EngineReader:
    """Reads the pages of a service's pods, with one port-forward for each pod that stays open between reads.

    For one thread; `close` may be called from another.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[str, tuple[PortForward, httpx.Client]] = {}
        self._pages: dict[str, list[Counts]] = {}
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="engine metrics")

    def read(self, pods: Sequence[Pod]) -> dict[str, Figures]:
        """Metrics by name, of the ready pods."""
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
        while len(pages) > 2 and pages[-1].at - pages[1].at >= WINDOW_SECONDS:
            pages.pop(0)
        return figures(pages)

    def _page(self, pod: Pod) -> Counts:
        import httpx

        from inflight_kubectl.engine_access import forward_to_pod

        if pod.uid not in self._open:
            # Where `servingMetrics` is off, only the admin port has the page, and it always has.
            forward = forward_to_pod(self._cluster, pod, pod.admin_port or pod.http_port)
            self._open[pod.uid] = forward, forward.client(timeout=5.0)
        forward, http = self._open[pod.uid]
        try:
            text = page_text(http)
        except httpx.HTTPError as error:
            self._forget(pod.uid, pages=False)
            raise forward.problem or Problem(f"no answer: {str(error) or type(error).__name__}") from error
        return parse_page(text, time.monotonic())

    def _forget(self, uid: str, *, pages: bool = True) -> None:
        opened = self._open.pop(uid, None)
        if opened is not None:
            opened[1].close()
            opened[0].close()
        if pages:
            self._pages.pop(uid, None)
