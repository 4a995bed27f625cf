"""Metrics of single engines, from their /metrics pages through port-forwards.

Names are vLLM's, with `inflight_*` where vLLM has none. Percentiles cover the observations between two reads, so a
pod's first read has none.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}\n]*)\})? +(\S+)", re.MULTILINE)
_EDGE = re.compile(r'(?:^|,)le="([^"]+)"')
_TTFT = "vllm:time_to_first_token_seconds_bucket"
_TPOT = "vllm:request_time_per_output_token_seconds_bucket"

Buckets = Mapping[float, float]
"""Cumulative counts by upper bound, the last one infinity."""


@dataclass(frozen=True, slots=True)
class Page:
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
    ttft: Buckets
    tpot: Buckets


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


def parse_page(text: str, at: float) -> Page:
    """The page in Prometheus' text format.

    Raises:
        ValueError: the page is not an engine's.
    """
    values: dict[str, float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = {_TTFT: defaultdict(float), _TPOT: defaultdict(float)}
    for name, labels, number in _LINE.findall(text):
        if name in buckets:
            edge = _EDGE.search(labels)
            if edge is not None:
                buckets[name][float(edge[1])] += float(number)
        elif name.startswith(("vllm:", "inflight_max_")) and not name.endswith("_bucket"):
            values[name] += float(number)
    if "vllm:num_requests_running" not in values:
        raise ValueError("this is not an engine's metrics page")
    return Page(
        at=at,
        running=int(values["vllm:num_requests_running"]),
        waiting=int(values["vllm:num_requests_waiting"]),
        kv=values["vllm:kv_cache_usage_perc"],
        generated=values["vllm:generation_tokens_total"],
        preemptions=values["vllm:num_preemptions_total"],
        max_num_seqs=int(values["inflight_max_num_seqs"]) if "inflight_max_num_seqs" in values else None,
        max_num_batched_tokens=(
            int(values["inflight_max_num_batched_tokens"]) if "inflight_max_num_batched_tokens" in values else None
        ),
        ttft=dict(buckets[_TTFT]),
        tpot=dict(buckets[_TPOT]),
    )


def figures(pages: Sequence[Page]) -> Figures:
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
        ttft_p95=percentile(last.ttft, first.ttft, 0.95),
        tpot_p95=percentile(last.tpot, first.tpot, 0.95),
    )


def percentile(now: Buckets, before: Buckets, q: float) -> float | None:
    """The q-quantile of the observations between two reads, linear within its bucket as PromQL's histogram_quantile;
    None without observations. Values above the last finite bound are reported as that bound."""
    counts = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(now.items())]
    if not counts or counts[-1][1] <= 0:
        return None
    rank = q * counts[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = (lower if math.isinf(bound) else bound), count
    return lower


def _limited(answer: httpx.Response) -> str:
    """The text of a page, up to `MAX_BYTES`."""
    content = bytearray()
    for piece in answer.iter_bytes():
        content += piece
        if len(content) > MAX_BYTES:
            raise ValueError(f"the page is larger than {MAX_BYTES >> 20} MiB")
    return content.decode(errors="replace")


class EngineReader:
    """Reads the pages of a service's pods, with one port-forward for each pod that stays open between reads.

    For one thread; `close` may be called from another.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[str, tuple[PortForward, httpx.Client]] = {}
        self._pages: dict[str, list[Page]] = {}
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
            what = str(error) if type(error) is ValueError else described(error)
            return replace(figures(pages), problem=what) if pages else Figures(problem=what)
        while len(pages) > 2 and pages[-1].at - pages[1].at >= WINDOW_SECONDS:
            pages.pop(0)
        return figures(pages)

    def _page(self, pod: Pod) -> Page:
        import httpx

        from inflight_kubectl.engine_access import forward_to_pod

        if pod.uid not in self._open:
            # Where `servingMetrics` is off, only the admin port has the page, and it always has.
            forward = forward_to_pod(self._cluster, pod, pod.admin_port or pod.http_port)
            self._open[pod.uid] = forward, forward.client(timeout=5.0)
        forward, http = self._open[pod.uid]
        try:
            with http.stream("GET", "/metrics") as answer:
                answer.raise_for_status()
                text = _limited(answer)
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
