"""Engine-side measurements of a load: the mean TTFT of the requests between two reads of their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight_base.page import reader
from inflight_base.page.histogram import summed
from inflight_base.page.reader import PageError, PageReader
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.output import Problem

_READER = PageReader((reader.RUNNING,), (reader.TTFT,))


@dataclass(frozen=True, slots=True)
class TtftTotals:
    """Times to first token of all pods since their start.

    Attributes:
        pods: uids of the read pods.
        seconds, requests: sum and number of the times to first token.
    """

    pods: frozenset[str]
    seconds: float
    requests: float


def read_totals(cluster: Cluster, pods: Sequence[Pod]) -> TtftTotals | None:
    """Reads the totals of the serving pods; None if one of them cannot be read."""
    import httpx

    from inflight_kubectl.engines.engine_access import forward_to_pod
    from inflight_kubectl.engines.engine_metrics import known_page, metrics_port

    serving = [pod for pod in pods if pod.serves]
    found = []
    for pod in serving:
        with forward_to_pod(cluster, pod, metrics_port(pod)) as forward:
            try:
                with forward.client(timeout=5.0) as http:
                    found.append(_READER.read(known_page(http, pod.engine)).histogram(reader.TTFT))
            except (httpx.HTTPError, Problem, PageError):
                return None
    ttft = summed(found)
    return TtftTotals(frozenset(pod.uid for pod in serving), ttft.total, ttft.count)


def between(before: TtftTotals | None, after: TtftTotals | None, requests: int) -> float | None:
    """Returns the mean TTFT of `requests` requests in seconds, from their arrival in the engine; None if pods were
    added or removed, or other clients sent requests too."""
    if before is None or after is None or before.pods != after.pods or not requests:
        return None
    if after.requests - before.requests != requests:
        return None
    return (after.seconds - before.seconds) / requests
