"""The demo's burst: traffic from inside the cluster, and what the loop does about it, row by row."""

from __future__ import annotations

import json
import threading
import time

from e2e.incluster import ScriptPod
from e2e.numbers import Numbers, numbers
from e2e.service import Service
from e2e.traffic.pod import driver_pod

LOOK_SECONDS = 1.0


class Watch:
    """Prints a row whenever the operator's numbers change, and each decision of the status once, with its reason."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = time.monotonic()
        self._last_row = ""
        self._seen = {_key(decision) for decision in service.view().decisions}
        self.most_queued = 0
        self.most_kv = 0.0
        self.most_ready = 0
        print("   seconds  replicas  ready  queue  running     KV  max_num_seqs  max_num_batched_tokens")

    def look(self) -> Numbers:
        """One look, printed if it is news."""
        seen = numbers(self._service)
        self.most_queued = max(self.most_queued, seen.waiting_requests or 0)
        self.most_kv = max(self.most_kv, seen.kv_utilization or 0.0)
        self.most_ready = max(self.most_ready, seen.ready_replicas or 0)
        for decision in self._service.view().decisions:
            if _key(decision) not in self._seen:
                self._seen.add(_key(decision))
                print(f"   > {decision['change']}: {decision['reason']}", flush=True)
        row = _row(seen)
        if row != self._last_row:
            self._last_row = row
            print(f"   {time.monotonic() - self._started:7.1f}  {row}", flush=True)
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
            watch.look()
            follower.join(LOOK_SECONDS)
        said = "".join(output).strip().splitlines() or ["nothing"]
        if pod.exit_code() != 0 or '"done": true' not in said[-1]:
            raise RuntimeError(f"the traffic driver says: {said[-1]}")
    return dict(json.loads(said[-1]))


def _collect(pod: ScriptPod, output: list[str]) -> None:
    output.extend(pod.follow())


def _key(decision: dict[str, object]) -> tuple[object, object]:
    return decision["time"], decision["change"]


def _row(seen: Numbers) -> str:
    columns = (
        (seen.replicas, 8),
        (seen.ready_replicas, 5),
        (seen.waiting_requests, 5),
        (seen.running_requests, 7),
        (None if seen.kv_utilization is None else f"{seen.kv_utilization:.0%}", 5),
        (seen.max_num_seqs, 12),
        (seen.max_num_batched_tokens, 22),
    )
    return "  ".join(f"{'-' if value is None else value:>{width}}" for value, width in columns)
