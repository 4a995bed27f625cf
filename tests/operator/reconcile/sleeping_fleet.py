"""A fleet behind a gateway that may scale to zero, for property tests: the gateway holds requests that no pod can
take."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.render.plan import Settings
from tests.operator.reconcile.random_fleet import CAPACITY, RandomFleet, Tick

BEHIND = Settings(engine_image="engine:dev", gateway_service="gateway.system.svc.cluster.local")
IDLE_TIMEOUT = 30.0
HOLD = 60.0
"""Seconds after which held requests give up."""


@dataclass(frozen=True)
class Moment:
    """Events until the next round: a tick of the fleet, and the number of gateway pods that are connected."""

    tick: Tick
    heard: int = 2


def spec(max_replicas=4, **more):
    return {
        "engine": {"maxNumSeqs": CAPACITY.max_num_seqs, "maxNumBatchedTokens": CAPACITY.max_num_batched_tokens},
        "gateway": {"enabled": True},
        "scaling": {"minReplicas": 0, "maxReplicas": max_replicas, "idleTimeout": f"{IDLE_TIMEOUT:g}s"},
        **more,
    }


_phase = st.builds(
    lambda seconds, rate, event, pod, heard, rounds: [
        Moment(Tick(seconds=seconds, rate=rate, event=event if index == 0 else "", pod=pod), heard)
        for index in range(rounds)
    ],
    st.sampled_from([1.0, 3.0, 3.0, 12.0]),
    st.sampled_from([0.0, 0.0, 0.0, 0.2, 4.0, 60.0]),
    st.sampled_from(["", "", "", "", "delete", "block", "unblock", "restart", "unready", "refuse", "room"]),
    st.integers(0, 3),
    st.sampled_from([2, 2, 2, 1, 0]),
    st.integers(1, 14),
)
courses = st.lists(_phase, min_size=3, max_size=8).map(lambda phases: [one for phase in phases for one in phase])


class SleepingFleet(RandomFleet):
    """Attributes:
    last: time when a request last arrived or ended, as the gateway knows it.
    held: requests at the gateway, and the time since when.
    """

    def __init__(self, spec, **more):
        self.last, self.held, self.held_since, self.heard, self.now = -1000.0, 0.0, 0.0, 2, 0.0
        self.pods = []
        super().__init__(spec, replicas=1, settings=BEHIND, **more)

    def happens(self, moment):
        self.heard, tick = moment.heard, moment.tick
        until = self.now + tick.seconds
        serving = [pod for pod in self.pods if pod.is_ready(until) and pod.leaves_at is None]
        if tick.rate:
            self.last = until
        if serving:
            self.held = 0.0
        elif tick.rate:
            self.held_since = self.held_since if self.held else until
            self.held += tick.rate * tick.seconds
        elif self.held and until - self.held_since > HOLD:
            self.held, self.last = 0.0, until
        if any(round(pod.engine.running + pod.engine.waiting) for pod in serving):
            self.last = until
        return self.tick(tick)

    @property
    def gateway(self):
        working = sum(round(pod.engine.running + pod.engine.waiting) for pod in self.pods)
        return GatewayView(
            pods=2,
            heard=self.heard,
            held=round(self.held),
            held_prompt_tokens=round(self.held) * 200,
            in_flight=working,
            idle_s=0.0 if working or self.held else self.now - self.last,
        )

    def snapshot(self):
        return replace(
            super().snapshot(), gateway=self.gateway, pooled=True, tenant_keys=("a tenant key, 32 characters",)
        )

    def _apply(self, plan):
        super()._apply(plan)
        status = {**self.deployment["status"], "updatedReplicas": plan.replicas, "replicas": plan.replicas}
        self.deployment = {**self.deployment, "status": status}
