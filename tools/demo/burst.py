"""The demo's burst: traffic from inside the cluster, and the operator's reaction, row by row."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from inflight_base.manifest.units import parse_duration
from tools.localcluster import kubectl
from tools.testbed.incluster import ScriptPod
from tools.testbed.load_pod import driver_pod
from tools.testbed.numbers import Numbers, numbers
from tools.testbed.service import Service

UPDATE_SECONDS = 1.0

ROW_SECONDS = 3.0
"""Seconds between two rows, unless there is a decision to print."""


@dataclass(frozen=True)
class Slo:
    """The targets of a service in seconds, for 95 of 100 requests."""

    ttft: float
    tpot: float


@dataclass(frozen=True)
class Latencies:
    """Latencies of clients: 95th percentiles in seconds; None: not measured."""

    ttft: float | None = None
    tpot: float | None = None


NOTHING_SEEN = Latencies()


def slo_of(service: Service) -> Slo:
    """The `spec.slo` of the live resource, which has both targets."""
    path = "jsonpath={.spec.slo}"
    spec = json.loads(kubectl("-n", service.namespace, "get", "inferenceservice", service.name, "-o", path))
    return Slo(parse_duration(spec["ttftP95"]), parse_duration(spec["tpotP95"]))


def latencies_of(line: Mapping[str, object]) -> Latencies:
    """Reads the latencies in a line of the traffic driver."""
    ttft, tpot = line.get("ttft_p95"), line.get("tpot_p95")
    return Latencies(
        ttft if isinstance(ttft, int | float) else None,
        tpot if isinstance(tpot, int | float) else None,
    )


def verdict(closing: Mapping[str, object], slo: Slo) -> str:
    """Returns a sentence on the targets over the whole burst, as clients saw it."""
    seen = latencies_of(closing)
    if seen.ttft is None or seen.tpot is None:
        return "no streamed answer: nothing is known of its TTFT and TPOT"
    kept = seen.ttft <= slo.ttft and seen.tpot <= slo.tpot
    return (
        f"p95 TTFT {_seconds(seen.ttft)} of {_seconds(slo.ttft)}, p95 TPOT {_milliseconds(seen.tpot)} of"
        f" {_milliseconds(slo.tpot)}: {'kept' if kept else 'not kept'}"
    )


class Watch:
    """Prints a row when the operator's numbers changed, and each decision of the status once, with its reason.

    Args:
        slo: targets, shown beside the latencies of the last seconds.
    """

    def __init__(self, service: Service, slo: Slo) -> None:
        self._service = service
        self._started = time.monotonic()
        self._last_row = ""
        self._next_row = 0.0
        self._seen = {_key(decision) for decision in service.status().get("decisions", ())}
        self.most_queued = 0
        self.most_kv = 0.0
        self.most_ready = 0
        ttft, tpot = f"TTFT/{_seconds(slo.ttft)}", f"TPOT/{_milliseconds(slo.tpot)}"
        print("   p95 TTFT and TPOT of the last 10 s beside their targets, as clients see them")
        print(f"   seconds  replicas  ready  queue  running     KV  {ttft:>11}  {tpot:>11}  seqs  batched tokens")

    def update(self, latencies: Latencies = NOTHING_SEEN) -> Numbers:
        """Reads the service's numbers, and prints them if they changed."""
        seen = numbers(self._service)
        self.most_queued = max(self.most_queued, seen.waiting_requests or 0)
        self.most_kv = max(self.most_kv, seen.kv_utilization or 0.0)
        self.most_ready = max(self.most_ready, seen.ready_replicas or 0)
        now, decided = time.monotonic() - self._started, False
        for decision in self._service.status().get("decisions", ()):
            if _key(decision) not in self._seen:
                self._seen.add(_key(decision))
                decided = True
                print(f"   > {decision['change']}: {decision['reason']}", flush=True)
        row = _row(seen, latencies)
        if row != self._last_row and (decided or now >= self._next_row):
            self._last_row, self._next_row = row, now + ROW_SECONDS
            print(f"   {now:7.1f}  {row}", flush=True)
        return seen


def run_burst(service: Service, watch: Watch, arguments: list[str], *, image: str) -> dict[str, object]:
    """Send the traffic and watch until it is through; returns the driver's closing line.

    Raises:
        RuntimeError: the driver lost a request, or did not finish.
    """
    with driver_pod(service, "burst", arguments, image=image) as pod:
        output: list[str] = []
        follower = threading.Thread(target=_collect, args=(pod, output))
        follower.start()
        while follower.is_alive():
            watch.update(_newest(output))
            follower.join(UPDATE_SECONDS)
        said = "".join(output).strip().splitlines() or ["nothing"]
        if pod.exit_code() != 0 or '"done": true' not in said[-1]:
            raise RuntimeError(f"the traffic driver says: {said[-1]}")
    return dict(json.loads(said[-1]))


def _collect(pod: ScriptPod, output: list[str]) -> None:
    output.extend(pod.follow())


def _newest(output: list[str]) -> Latencies:
    """Reads the latencies in the last whole line of the driver."""
    said = "".join(output).rpartition("\n")[0].splitlines()
    return latencies_of(json.loads(said[-1])) if said and said[-1].startswith("{") else NOTHING_SEEN


def _key(decision: dict[str, object]) -> tuple[object, object]:
    return decision["time"], decision["change"]


def _row(seen: Numbers, latencies: Latencies) -> str:
    columns = (
        (seen.replicas, 8),
        (seen.ready_replicas, 5),
        (seen.waiting_requests, 5),
        (seen.running_requests, 7),
        (None if seen.kv_utilization is None else f"{seen.kv_utilization:.0%}", 5),
        (None if latencies.ttft is None else _seconds(latencies.ttft), 11),
        (None if latencies.tpot is None else _milliseconds(latencies.tpot), 11),
        (seen.max_num_seqs, 4),
        (seen.max_num_batched_tokens, 14),
    )
    return "  ".join(f"{'-' if value is None else value:>{width}}" for value, width in columns)


def _seconds(value: float) -> str:
    return f"{value:.2g} s"


def _milliseconds(value: float) -> str:
    return f"{value * 1000:.0f} ms"
