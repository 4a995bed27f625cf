"""The pods of a fleet on one clock: their lifecycle, routing of requests, and the next event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

from inflight_settings.limits import LimitsInForce
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.gateway import Gateway
from inflight_simulator.fleet.outcome import ReplicaCount
from inflight_simulator.fleet.replicas.meter import Meter
from inflight_simulator.fleet.replicas.noise import Noise
from inflight_simulator.fleet.replicas.pods import Pod, first_to_go
from inflight_simulator.fleet.replicas.replica import NEVER, Replica, scheduler_config
from inflight_simulator.fleet.replicas.request_states import RequestStates
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.routing import Router

Rank = Callable[[Pod], Any]


class Fleet:
    """The pods and their events.

    Args:
        begin: when the first pods are ready, in seconds.
        metered: a controller reads the pods' metrics.

    Attributes:
        pods: all pods of the run, by number.
        live: existing pods that answer, oldest first. prefill: those that compute prompts for them; scalers do not see
            these.
        ordered: number of replicas that was ordered last, without `prefill`.
        first_limits: limits of pods that become ready.
        counts: numbers of replicas, a row at each change.
        gateway: the gateway; None: requests are routed on arrival.
    """

    def __init__(self, config: FleetConfig, requests: Requests, begin: float, *, metered: bool) -> None:
        self.config = config
        self.states = RequestStates(requests)
        self.pods: list[Pod] = []
        self.live: list[Pod] = []
        self.prefill: list[Pod] = []
        self.ordered = config.initial_replicas
        self.counts: list[ReplicaCount] = []
        self.first_limits = LimitsInForce(config.limits)
        longest = int((requests.prompt_tokens + requests.output_tokens).max())
        self._scheduling = partial(scheduler_config, longest=longest, prefix_caching=bool(requests.hash_ids))
        self._router = Router(config.routing)
        self.gateway = Gateway(config, self.states, begin, self._send_to) if config.routing == "gateway" else None
        self._metered = metered
        self._events: list[tuple[float, bool, int]] = []
        """Next event of each replica: its time, whether a step starts, the pod's number. Some are out of date."""
        for _ in range(config.initial_replicas):
            pod = self._create(begin - config.start_up_s, begin)
            self._become_ready(pod)
        for _ in range(0 if config.prefill is None else config.prefill.replicas):
            pod = self._create(begin - config.start_up_s, begin, prefill=True)
            pod.ready = True
        self._count(begin)

    def send(self, request_id: int, now: float) -> None:
        """Sends a request that arrives; `advance` has processed all earlier events."""
        if self.gateway is None:
            self._send_to(self._router.choose(), request_id, now)
            return
        self.gateway.update(self.behind_gateway, now)
        self.gateway.arrive(request_id, now)

    @property
    def behind_gateway(self) -> list[Pod]:
        """All pods that the gateway knows."""
        return [*self.live, *self.prefill] if self.prefill else self.live

    @property
    def next_message_s(self) -> float:
        """Time of the next message between the gateway's pods."""
        return NEVER if self.gateway is None else self.gateway.next_s

    def _send_to(self, number: int, request_id: int, now: float) -> None:
        states, replica = self.states, self.pods[number].replica
        source, states.pod[request_id] = states.pod[request_id], number
        if source >= 0:
            self._move(source, number, request_id, now)
            return
        states.sent_s[request_id] = now
        self._note_event(number, lambda: replica.arrive(request_id, now))
        self._route(number, replica)

    def _move(self, source: int, number: int, request_id: int, now: float) -> None:
        """Moves a request from the prefill set to a replica that answers."""
        assert self.gateway is not None
        giving, taking = self.pods[source].replica, self.pods[number].replica
        request, blocks, last_s = giving.withdraw(request_id, now)
        self._push_event(source)
        num_read, seconds = taking.expect(request, blocks, now)
        giving.give(num_read)
        self.states.reads.append(seconds)
        came_s = now + seconds
        resume = partial(taking.resume, request, blocks, last_s, came_s)
        self.gateway.at(came_s, lambda: self._note_event(number, resume))

    def _note_event(self, number: int, change: Callable[[], None]) -> None:
        """Makes a change to a replica that may bring its next event forward."""
        replica = self.pods[number].replica
        before = replica.event
        change()
        if replica.event != before:
            self._push_event(number)

    def _push_event(self, number: int) -> None:
        replica = self.pods[number].replica
        if replica.event != NEVER:
            heappush(self._events, (replica.event, replica.starts, number))

    def advance(self, now: float) -> None:
        """Process all events up to now, except steps that start now."""
        if self.prefill:
            self._advance_apart(now)
            return
        events, pods = self._events, self.pods
        limit = (now, True)
        drained: list[Pod] = []
        while events and events[0] < limit:
            time, starts, number = heappop(events)
            pod = pods[number]
            replica = pod.replica
            if replica.event != time or replica.starts != starts:
                continue
            replica.advance(now)
            if replica.event != NEVER:
                heappush(events, (replica.event, replica.starts, number))
            if pod.draining:
                if not replica.outstanding:
                    drained.append(pod)
            else:
                self._route(number, replica)
        # A replica processes all of its events at once, so requests are not in the order of their ends.
        for pod in sorted(drained, key=lambda each: each.replica.idle_s):
            self._end(pod, pod.replica.idle_s)

    def _advance_apart(self, now: float) -> None:
        """Does the same one event at a time over all replicas, as a first token at one of them may move its request to
        another, and the gateway's messages in between."""
        events, gateway, begun = self._events, self.gateway, self.states.begun
        assert gateway is not None
        while True:
            message_s = gateway.next_s
            if events and events[0] < (min(message_s, now), True):
                time, starts, number = heappop(events)
                pod = self.pods[number]
                replica = pod.replica
                if replica.event != time or replica.starts != starts:
                    continue
                replica.step()
                self._push_event(number)
                if pod.draining and not replica.outstanding:
                    self._end(pod, replica.idle_s)
                for request_id in begun:
                    gateway.first_token(request_id, time)
                begun.clear()
            elif message_s <= now:
                gateway.run(message_s)
            else:
                return

    def start_pods(self, now: float) -> None:
        """Lets pods take requests whose start-up is over."""
        due = [pod for pod in self.live if not pod.ready and pod.starts_s <= now]
        for pod in due:
            pod.replica.set_limits(self.first_limits, now)
            self._become_ready(pod)
        if due:
            self._count(now)

    def order(self, replicas: int, now: float, rank: Rank = first_to_go) -> None:
        """Create or remove pods to reach the number of pods that do not drain; `rank` is the order of removal."""
        if replicas == self.ordered:
            return
        self.ordered = replicas
        staying = [pod for pod in self.live if not pod.draining]
        for _ in range(replicas - len(staying)):
            self._create(now, now + self.config.start_up_s)
        for pod in sorted(staying, key=rank)[: max(0, len(staying) - replicas)]:
            pod.draining = True
            if pod.ready:
                self._router.close(pod.number)
            if not pod.replica.outstanding:
                self._end(pod, now)
        self._count(now)

    def set_limits(self, pod: Pod, limits: LimitsInForce, now: float) -> None:
        replica = pod.replica
        replica.set_limits(limits, now)
        self._push_event(pod.number)

    def _create(self, now: float, starts_s: float, *, prefill: bool = False) -> Pod:
        number = len(self.pods)
        config, apart = self.config, self.config.prefill
        if prefill and apart is not None and apart.limits is not None:
            config = replace(config, limits=apart.limits)
        meter = Meter() if self._metered and not prefill else None
        noise = Noise(config.replica.noise, (config.seed, number))
        replica = Replica(config, self._scheduling(config), self.states, noise, meter, prefill=prefill)
        pod = Pod(number, replica, now, starts_s, meter, prefill=prefill)
        self.pods.append(pod)
        (self.prefill if prefill else self.live).append(pod)
        return pod

    def _become_ready(self, pod: Pod) -> None:
        pod.ready = True
        self._router.open(pod.number)

    def _end(self, pod: Pod, now: float) -> None:
        pod.ended_s = now
        self.live.remove(pod)
        self._count(now)

    def _route(self, number: int, replica: Replica) -> None:
        if self.gateway is not None:
            return
        pending = replica.tokens_ahead if self._router.by_work else 0
        self._router.update(number, replica.outstanding, pending)

    def _count(self, now: float) -> None:
        ready = sum(pod.routable for pod in self.live)
        self.counts.append(ReplicaCount(now, self.ordered, ready, len(self.live)))
