"""The gateway in front of a simulated fleet: the real picker, prefix index and hold queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.pick.picker import Picker
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, HoldBounds, Pick, RequestView, ServiceConfig
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.pods import Pod
from inflight_simulator.fleet.request_states import RequestStates

SCRAPE_S = 1.0
_SERVICE = ServiceKey("simulated", "fleet")
_UNBOUNDED = HoldBounds(max_requests=2**62, max_bytes=2**62, max_wait_s=math.inf)
"""Bounds of the hold queue: none, as of the queues of pods, so that all routings serve the same requests."""
_SPREAD = 0x9E37_79B9_7F4A_7C15
"""Factor that makes hashes of consecutive ids: 2^64 / the golden ratio, Knuth 1998, 6.4."""


class Gateway:
    """The gateway: it picks from samples up to a second old and from requests sent since, as in the cluster."""

    def __init__(self, config: FleetConfig, states: RequestStates) -> None:
        targets = config.service_targets
        self._cost = config.replica.cost
        self._states = states
        self._config = ServiceConfig(
            key=_SERVICE,
            uid="",
            model="",
            ttft_s=config.targets.ttft,
            ttft_per_token_s=targets.ttft_per_token,
            tpot_s=config.targets.tpot,
            max_num_seqs=config.limits.max_num_seqs,
            hold=_UNBOUNDED,
        )
        self._targets = targets
        self._numbers: dict[str, int] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self._samples: dict[str, EngineSample] = {}
        self._next_scrape = -math.inf
        self._changed = False
        """A replica or a request at one has changed since the last release."""
        self._queue = HoldQueue()
        self._ledger = Ledger(lambda _: self._endpoints, self._samples.get, Estimates())
        self._picker = Picker(self._ledger.ranking)

    @property
    def num_held(self) -> int:
        return len(self._queue)

    def arrive(self, request_id: int, now: float) -> None:
        states = self._states
        prompt_tokens = states.prompt_tokens[request_id]
        hash_ids = states.requests.hash_ids[request_id] if states.requests.hash_ids else ()
        block_tokens = states.requests.hash_tokens
        target = self._targets.ttft_of(prompt_tokens)
        request = RequestView(
            request_id=str(request_id),
            service=_SERVICE,
            arrived=now,
            prompt_tokens=prompt_tokens,
            prefix=tuple(each * _SPREAD for each in hash_ids[: prompt_tokens // block_tokens]),
            block_tokens=block_tokens,
            deadline=math.inf if target is None else now + target,
        )
        self._queue.offer(request, self._config, now)

    def update(self, pods: Sequence[Pod], now: float) -> None:
        """Updates endpoints, ended requests and, once a second, metrics."""
        routable = [pod for pod in pods if pod.routable]
        if len(routable) != len(self._endpoints) or any(pod.name not in self._numbers for pod in routable):
            self._set_endpoints(routable)
            self._changed = True
        ended = self._states.ended
        self._changed |= bool(ended)
        for request_id in ended:
            self._ledger.end(str(request_id), now)
        ended.clear()
        if now >= self._next_scrape:
            self._next_scrape, self._changed = now + SCRAPE_S, True
            for pod in routable:
                self._samples[pod.name] = self._sample(pod, now)
                self._ledger.sampled(pod.name, now)

    def release(self, now: float, send: Callable[[int, int], None]) -> None:
        """Calls `send` with the id of each request that can start, and the number of its pod."""

        def can_start(request: RequestView) -> Pick | None:
            found = self._ledger.candidates(self._config, request, now)
            pick = self._picker.pick(request, self._config, found.loads, now, replicas=found.replicas)
            if pick is not None:
                self._ledger.begin(request, pick, now)
            return pick

        if not self._queue:
            return
        changed, self._changed = self._changed, False
        for request, pick in self._queue.release(now, can_start, changed=changed):
            request_id = int(request.request_id)
            self._states.sent_s[request_id] = now
            self._queue.served(request, self._states.output_tokens[request_id])
            send(request_id, self._numbers[pick.endpoints[0].address])

    def _set_endpoints(self, pods: Sequence[Pod]) -> None:
        names = {pod.name for pod in pods}
        for name in [name for name in self._numbers if name not in names]:
            del self._numbers[name]
            self._samples.pop(name, None)
            self._ledger.forget(_SERVICE, name)
        self._numbers.update({pod.name: pod.number for pod in pods})
        self._endpoints = tuple(Endpoint(pod.name, pod.name) for pod in pods)

    def _sample(self, pod: Pod, now: float) -> EngineSample:
        replica = pod.replica
        replica.take_in_until(now)
        scheduler = replica.scheduler
        config = scheduler.config
        return EngineSample(
            at=now,
            running=scheduler.num_running,
            waiting=replica.num_waiting,
            waiting_prompt_tokens=replica.pending_tokens,
            kv_utilization=scheduler.kv_usage,
            kv_cache_tokens=config.num_blocks * config.block_size,
            limits=scheduler.limits,
            cost=self._cost,
        )
