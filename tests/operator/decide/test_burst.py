"""A burst on a fleet of model engines (arithmetic, not engines), driven by the real scaling and tuning decisions."""

from dataclasses import dataclass, field
from itertools import pairwise

from inflight_operator.decide.views import scaling_observation, tuning_view

from inflight_operator.decide.behavior import Behavior, ScalingHistory, ScalingRules
from inflight_operator.decide.scaling import ScalingBounds, ScalingTargets, decide_scaling
from inflight_operator.decide.tuning import TuningMode, decide_tuning
from inflight_operator.decide.tuning_types import Limits, Slo, TuningBounds, TuningPolicy, TuningState
from inflight_operator.observe.window import Window
from tests.operator.model_engine import ModelEngine

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
    scaling: ScalingHistory = field(default_factory=ScalingHistory)
    tuning: TuningState = field(default_factory=lambda: TuningState(0.0))
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
        samples = {name: engine.sample() for name, engine in self.engines.items()}
        self.window = self.window.with_samples(samples, self.engines, self.now)
        self.decide()

    def decide(self):
        decision = decide_scaling(
            scaling_observation(self.window, self.engines, self.replicas, self.now, 10.0),
            ScalingTargets(waiting_requests=4, kv_utilization=0.8, ttft_p95=2.0),
            Behavior(scale_down=ScalingRules(30.0)),
            ScalingBounds(1, 4),
            self.scaling,
        )
        self.scaling = decision.history
        if decision.replicas != self.replicas:
            self.changes.append((self.now, decision.reason))
        self.replicas = decision.replicas
        while len(self.engines) + len(self.starting) < self.replicas:
            name, engine = self.start()
            self.starting.append((self.now + START_UP, name, engine))
        while len(self.engines) + len(self.starting) > self.replicas:
            name = min(self.engines, key=lambda one: len(self.engines[one].running))
            self.draining.append(self.engines.pop(name))
        tuned = decide_tuning(
            TuningMode.AUTO,
            tuning_view(self.window, self.tuning.window_start, self.now),
            self.limits,
            TuningBounds(Limits(1, 64), Limits(64, 2048)),
            Slo(2.0, 0.08),
            self.tuning,
            TuningPolicy(),
        )
        self.limits, self.tuning = tuned.limits, tuned.state
        if tuned.change:
            self.changes.append((self.now, tuned.reason))
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
    told = [reason for _, reason in fleet.changes]
    assert any(reason.startswith("max_num_seqs") for reason in told)
    assert any(reason.startswith("max_num_batched_tokens") for reason in told)
    assert any("no request waits" in reason for reason in told)
    last_change = max(time for time, _ in fleet.changes)
    assert last_change < 200  # and then nothing moves any more

    first_down = next(i for i, (a, b) in enumerate(pairwise(fleet.course)) if b < a)
    assert all(b <= a for a, b in pairwise(fleet.course[first_down:]))
