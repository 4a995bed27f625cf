"""A burst on a fleet of model engines (arithmetic, not engines), driven by `decide` with snapshots made here: a
simulation needs no cluster and no API server."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from inflight_operator.api.types import InferenceService
from inflight_operator.observe.pods import pod_view
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.decide import decide
from inflight_operator.reconcile.memory import Memory, first_memory
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.snapshot import Snapshot, fresh_samples
from inflight_operator.render.plan import Settings
from inflight_settings.limits import Limits
from tests.operator.decide.words import change_said
from tests.operator.fakes import pod_body, service_body
from tests.operator.model_engine import ModelEngine

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
SETTINGS = Settings(engine_image="engine:dev")
SPEC = {
    "engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048},
    "slo": {"ttftP95": "2s", "tpotP95": "80ms"},
    "scaling": {
        "maxReplicas": 4,
        "behavior": {
            "scaleDown": {
                "stabilizationWindowSeconds": 30,
                "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}],
            }
        },
    },
}
SERVICE = InferenceService.from_dict(service_body(spec=SPEC))
POLICY = policy_of(SERVICE, SETTINGS)

START_UP = 12.0
TICK = 3.0


@dataclass
class Fleet:
    """Replicas that take `START_UP` seconds to start and drain before they go; requests go to the shortest queue."""

    now: float = 0.0
    replicas: int = 1
    limits: Limits = field(default_factory=lambda: Limits(64, 2048))
    engines: dict = field(default_factory=dict)
    starting: list = field(default_factory=list)
    draining: list = field(default_factory=list)
    window: Window = field(default_factory=Window)
    memory: Memory = field(default_factory=lambda: first_memory(SERVICE, POLICY, 1, 0.0, START))
    made: int = 0
    course: list = field(default_factory=list)
    changes: list = field(default_factory=list)

    def start(self):
        self.made += 1
        return f"pod-{self.made}", ModelEngine(time=self.now)

    def everyone(self):
        return [*self.engines.values(), *self.draining]

    def tick(self, arrivals):
        for at, prompt, output in arrivals:
            for engine in self.everyone():
                engine.run_until(at)
            least = min(self.engines.values(), key=lambda one: len(one.waiting) + len(one.running))
            least.add(prompt, output)
        self.now += TICK
        for engine in self.everyone():
            engine.run_until(self.now)
        for ready_at, name, engine in [one for one in self.starting if one[0] <= self.now]:
            engine.time = self.now
            self.engines[name] = engine
            self.starting.remove((ready_at, name, engine))
        samples = {f"uid-{name}": engine.sample() for name, engine in self.engines.items()}
        self.window = self.window.with_samples(samples, samples, self.now)
        self.decide()

    def decide(self):
        starting = [name for _, name, _ in self.starting]
        bodies = [pod_body(name, ready=name in self.engines) for name in [*self.engines, *starting]]
        pods = tuple(pod_view(body) for body in bodies)
        plan = decide(
            Snapshot(
                service=SERVICE,
                policy=POLICY,
                settings=SETTINGS,
                now=self.now,
                at=START + timedelta(seconds=self.now),
                pods=pods,
                window=self.window,
                fresh=fresh_samples(self.window, pods, self.now, 10.0),
            ),
            self.memory,
        )
        self.memory, self.replicas, self.limits = plan.memory, plan.replicas, plan.limits.limits
        self.changes += [(self.now, change_said(decision)) for decision in plan.decisions]
        while len(self.engines) + len(self.starting) < self.replicas:
            name, engine = self.start()
            self.starting.append((self.now + START_UP, name, engine))
        while len(self.engines) + len(self.starting) > self.replicas:
            name = min(self.engines, key=lambda one: len(self.engines[one].running))
            self.draining.append(self.engines.pop(name))
        for engine in [*self.everyone(), *(engine for _, _, engine in self.starting)]:
            engine.max_num_seqs = self.limits.max_num_seqs
            engine.max_num_batched_tokens = self.limits.max_num_batched_tokens
        self.course.append(self.replicas)


def test_a_burst_scales_out_tunes_and_settles_back_with_every_request_answered():
    fleet = Fleet()
    name, first = fleet.start()
    fleet.engines[name] = first
    burst = [(10 + i / 4, 300, 80) for i in range(240)]
    everyone = {id(first): first}
    while fleet.now < 300:
        due = [one for one in burst if fleet.now < one[0] <= fleet.now + TICK]
        fleet.tick(due)
        everyone.update({id(engine): engine for engine in fleet.everyone()})
    assert max(fleet.course) > 1
    assert max(fleet.course) <= 4
    assert fleet.course[-1] == 1
    assert sum(engine.finished for engine in everyone.values()) == len(burst)
    reasons = [reason for _, reason in fleet.changes]
    assert any(reason.startswith("max_num_seqs") for reason in reasons)
    assert any(reason.startswith("max_num_batched_tokens") for reason in reasons)
    assert any("no request waits" in reason for reason in reasons)
    last_change = max(time for time, _ in fleet.changes)
    assert last_change < 200  # and then nothing moves any more

    first_down = next(i for i, (a, b) in enumerate(pairwise(fleet.course)) if b < a)
    assert all(b <= a for a, b in pairwise(fleet.course[first_down:]))
