"""A fleet for property tests of `decide`: pods that start, are blocked, leave, are evicted or fall silent, engines that
are arithmetic, and snapshots of both made here, without a cluster."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from inflight_cost.model import CostModel
from inflight_operator.api.types import InferenceService
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import LimitsPush, pod_view
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.decide import decide
from inflight_operator.reconcile.memory import Memory, first_memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.snapshot import Snapshot, fresh_samples
from inflight_operator.render.plan import Settings
from inflight_settings.limits import Limits
from tests.operator.fakes import pod_body, service_body
from tests.operator.model_engine import SECONDS, TOKENS, Buckets

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
SETTINGS = Settings(engine_image="engine:dev")
CAPACITY = Limits(64, 2048)
HALF = Limits(32, 1024)
STALE_AFTER = 10.0
KV_TOKENS = 32_000
TOKEN = "WTvL5cZ0bWq1kqk0Wb1u6i8m9x2s4f7h"
COST = CostModel(0.008, 0.0004, 0.00005, 1e-8, 1e-10)


@dataclass(frozen=True)
class Tick:
    """Events until the next round.

    Attributes:
        seconds: time that passes.
        rate: requests per second, over all ready pods.
        prompt: prompt tokens of each request.
        silent: numbers of the pods that cannot be scraped.
        event: event of one pod, or of the cluster.
        pod: number of the pod of the event.
    """

    seconds: float = 3.0
    rate: float = 0.0
    prompt: int = 200
    silent: frozenset = frozenset()
    event: str = ""
    pod: int = 0


NONE: frozenset = frozenset()
EVENTS = ("", "", "", "", "delete", "evict", "block", "unblock", "restart", "unready", "refuse", "quota", "room")

_phases = st.builds(
    lambda first, rounds: [first, *[replace(first, event="")] * rounds],
    st.builds(
        Tick,
        seconds=st.sampled_from([3.0, 3.0, 3.0, 1.0, 12.0, 40.0]),
        rate=st.sampled_from([60.0, 15.0, 4.0, 0.2, 0.0]),
        prompt=st.sampled_from([200, 200, 2000]),
        silent=st.sampled_from([NONE, NONE, NONE, frozenset({1}), frozenset({1, 2, 4}), frozenset(range(99))]),
        event=st.sampled_from(EVENTS),
        pod=st.integers(0, 5),
    ),
    st.integers(1, 15),
)
ticks = st.lists(_phases, min_size=3, max_size=7).map(lambda phases: [tick for phase in phases for tick in phase])
"""The course of a fleet, in phases of equal rounds that begin with an event."""

_policies = st.lists(
    st.builds(
        lambda kind, value, period: {"type": kind, "value": value, "periodSeconds": period},
        st.sampled_from(["Pods", "Percent"]),
        st.sampled_from([1, 4, 100]),
        st.sampled_from([1, 15, 60]),
    ),
    min_size=1,
    max_size=2,
)
_rules = st.builds(
    lambda window, select, policies: {
        "stabilizationWindowSeconds": window,
        "selectPolicy": select,
        "policies": policies,
    },
    st.sampled_from([0, 6, 60]),
    st.sampled_from(["Max", "Max", "Min", "Disabled"]),
    _policies,
)


@st.composite
def specs(draw, tuning=("Auto", "Recommend", "Off")):
    """Specs in mode Operator, with every kind of bound, target and rule."""
    low = draw(st.integers(1, 4))
    spec = {
        "engine": {"maxNumSeqs": CAPACITY.max_num_seqs, "maxNumBatchedTokens": CAPACITY.max_num_batched_tokens},
        "scaling": {
            "minReplicas": low,
            "maxReplicas": low + draw(st.integers(0, 6)),
            "behavior": {"scaleUp": draw(_rules), "scaleDown": draw(_rules)},
        },
        "tuning": {"mode": draw(st.sampled_from(tuning))},
    }
    if draw(st.booleans()):
        spec["slo"] = {"ttftP95": "2s", "tpotP95": draw(st.sampled_from(["10ms", "30ms", "200ms"]))}
    if draw(st.booleans()):
        spec["tuning"]["maxNumSeqs"] = {"min": 8, "max": 48}
    if draw(st.booleans()):
        spec["scaling"]["targets"] = {"waitingRequests": draw(st.sampled_from([1, 4, 50]))}
    return spec


@st.composite
def overridden(draw):
    """A spec with limits set by hand that end during a course, or after it."""
    spec, limits = draw(specs()), {}
    limits["maxNumSeqs"] = draw(st.sampled_from([1, 6, 64]))
    if draw(st.booleans()):
        limits["maxNumBatchedTokens"] = draw(st.sampled_from([16, 700, 2048]))
    spec["tuning"]["override"] = {**limits, "until": _moment(draw(st.sampled_from([-9.0, 10.0, 60.0, 1e6])))}
    return spec


@dataclass
class FluidEngine:
    """A fluid model of an engine: requests as an amount that flows, steps with the cost `COST`."""

    output: int = 100
    capacity: Limits = CAPACITY
    limits: Limits = CAPACITY
    revision: int = 0
    waiting: float = 0.0
    running: float = 0.0
    tokens: float = 0.0
    arrived: float = 0.0
    arrived_tokens: float = 0.0
    arrived_squares: float = 0.0
    kv_tokens: float = 0.0
    prompt_tokens: float = 0.0
    preemptions: float = 0.0
    ttft: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    tpot: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    itl: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    step_tokens: Buckets = field(default_factory=lambda: Buckets(TOKENS))

    @property
    def pace(self):
        """Returns the seconds of a step."""
        return COST.base_s + COST.decode_seq_s * self.running + COST.prefill_token_s * 200

    @property
    def rate(self):
        """Returns the requests per second that end."""
        return self.running / (self.output * self.pace)

    def run(self, seconds, rate, prompt):
        self.arrived += rate * seconds
        self.arrived_tokens += rate * seconds * prompt
        self.arrived_squares += rate * seconds * prompt**2
        self.waiting += rate * seconds
        pace, ended = self.pace, min(self.running, self.rate * seconds)
        begun = min(self.waiting, self.limits.max_num_seqs - self.running + ended)
        self.running += begun - ended
        self.waiting -= begun
        self.tokens += ended * self.output
        self.ttft.observe(pace * 10 + self.waiting * pace, round(begun))
        self.tpot.observe(pace, round(ended))
        self.itl.observe(pace, round(ended * self.output))
        self.step_tokens.observe(self.running + 200, max(1, round(seconds / pace)))
        self.prompt_tokens = prompt * self.waiting
        self.kv_tokens = self.running * (prompt + self.output / 2)
        self.preemptions += max(0.0, self.kv_tokens / KV_TOKENS - 1.0) * seconds

    def sample(self, time):
        return Sample(
            time=time,
            running=round(self.running),
            waiting=round(self.waiting),
            kv_usage=min(1.0, self.kv_tokens / KV_TOKENS),
            preemptions=float(round(self.preemptions)),
            generation_tokens=float(round(self.tokens)),
            ttft=self.ttft.value(),
            tpot=self.tpot.value(),
            itl=self.itl.value(),
            step_tokens=self.step_tokens.value(),
            waiting_prompt_tokens=round(self.prompt_tokens),
            limits=self.limits,
            capacity=self.capacity,
            revision=self.revision,
            prompt_tokens=float(round(self.arrived_tokens)),
            arrived=float(round(self.arrived)),
            arrived_tokens=float(round(self.arrived_tokens)),
            arrived_squares=float(round(self.arrived_squares)),
            output_mean=float(self.output) if self.tokens else None,
            output_square=float(self.output**2) if self.tokens else None,
            kv_tokens=KV_TOKENS,
            cost=COST if self.tokens > 1000 else None,
            cost_error=0.05 if self.tokens > 1000 else None,
            cost_steps=min(self.tokens, 1000.0),
        )


@dataclass
class Pod:
    """Attributes:
    trouble: "", "blocked" (its image cannot be pulled) or "evicted".
    leaves_at: time of its end; None while it stays.
    """

    number: int
    created: float
    ready_at: float
    trouble: str = ""
    leaves_at: float | None = None
    engine: FluidEngine = field(default_factory=FluidEngine)

    def body(self, now):
        name, ready = f"chat-{self.number}", self.is_ready(now)
        body = pod_body(name, ip=f"10.0.0.{self.number}", ready=ready, deleting=self.leaves_at is not None)
        body["metadata"]["creationTimestamp"] = _moment(self.created)
        body["status"]["conditions"][0]["lastTransitionTime"] = _moment(self.ready_at if ready else self.created)
        (container,) = body["status"]["containerStatuses"]
        container["state"] = {"running": {"startedAt": _moment(self.created)}}
        if self.trouble == "blocked":
            container["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
            body["status"]["phase"] = "Pending"
        elif self.trouble == "evicted":
            body["status"].update(phase="Failed", message="The node was low on memory")
        return body

    def is_ready(self, now):
        return not self.trouble and now >= self.ready_at


@dataclass(frozen=True)
class Round:
    """A decision: its inputs and its result."""

    snapshot: Snapshot
    memory: Memory
    plan: Plan

    @property
    def ready(self):
        return {pod.uid for pod in self.snapshot.pods if pod.serves}

    @property
    def all_stale(self):
        return bool(self.ready) and not self.snapshot.fresh

    @property
    def some_stale(self):
        return bool(self.ready - set(self.snapshot.fresh))


class RandomFleet:
    """A service whose Deployment does what plans order.

    Args:
        start_up: seconds from a pod's creation until it is ready.
        small: numbers of pods whose engines have half the capacity.
        settings: settings of the installation.
    """

    def __init__(self, spec, *, start_up=12.0, replicas=None, unread=(), small=frozenset(), settings=SETTINGS):
        self.service = InferenceService.from_dict(service_body(spec=spec))
        self.settings = settings
        self.policy = policy_of(self.service, settings)
        self.start_up = start_up
        self.unread = ()
        self.now = 0.0
        self.window = Window()
        self.replicas = replicas if replicas is not None else self.policy.bounds.min_replicas
        self.memory = first_memory(self.service, self.policy, self.replicas, 0.0, START)
        self.deployment = None
        self.refused = False
        self.small = small
        self.pushes = {}
        self.made = 0
        self.pods = []
        self.rounds = []
        self._follow(self.replicas)
        for pod in self.pods:
            pod.created, pod.ready_at = -start_up, 0.0
        self.decide()  # the Deployment is of a spec that could be read
        self.unread = unread

    def tick(self, tick):
        self.now += tick.seconds
        self._befall(tick.event, tick.pod)
        self.pods = [pod for pod in self.pods if pod.leaves_at is None or pod.leaves_at > self.now]
        serving = [pod for pod in self.pods if pod.is_ready(self.now) and pod.leaves_at is None]
        for pod in serving:
            pod.engine.run(tick.seconds, tick.rate / len(serving), tick.prompt)
        samples = {
            f"uid-chat-{pod.number}": pod.engine.sample(self.now) for pod in serving if pod.number not in tick.silent
        }
        self.window = self.window.with_samples(samples, [f"uid-chat-{pod.number}" for pod in serving], self.now)
        return self.decide()

    def snapshot(self):
        pods = tuple(pod_view(pod.body(self.now)) for pod in sorted(self.pods, key=lambda pod: f"chat-{pod.number}"))
        return Snapshot(
            service=self.service,
            policy=self.policy,
            settings=self.settings,
            now=self.now,
            at=START + timedelta(seconds=self.now),
            admin_token=TOKEN,
            unread=self.unread,
            pods=pods,
            deployment=self.deployment,
            listed=frozenset(pod.uid for pod in pods if pod.serves),
            window=self.window,
            fresh=fresh_samples(self.window, pods, self.now, STALE_AFTER),
            pushes=dict(self.pushes),
        )

    def decide(self):
        snapshot, memory = self.snapshot(), self.memory
        plan = decide(snapshot, memory)
        self.memory = plan.memory
        self.rounds.append(Round(snapshot, memory, plan))
        self._apply(plan)
        self._follow(plan.replicas)
        return self.rounds[-1]

    def _apply(self, plan):
        deployment = next((one for one in plan.children if one["kind"] == "Deployment"), self.deployment)
        failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
        self.deployment = {
            **deployment,
            "metadata": {**deployment["metadata"], "generation": 1},
            "spec": {**deployment["spec"], "replicas": plan.replicas},
            "status": {"observedGeneration": 1, "conditions": [failure] if self.refused else []},
        }
        for pod, limits in plan.push:
            engine = next(one.engine for one in self.pods if f"uid-chat-{one.number}" == pod.uid)
            engine.limits, engine.revision = limits.limits, limits.revision
            self.pushes[pod.uid] = LimitsPush(accepted=limits, at=self.now)

    def _follow(self, replicas):
        """Acts as the ReplicaSet: keeps as many pods as are ordered, and removes those that are not ready first."""
        self.replicas = replicas
        alive = [pod for pod in self.pods if pod.leaves_at is None and pod.trouble != "evicted"]
        while len(alive) < replicas and not self.refused:
            self.made += 1
            most = HALF if self.made in self.small else CAPACITY
            engine = FluidEngine(capacity=most, limits=self.memory.limits.limits.at_most(most))
            alive.append(Pod(self.made, self.now, self.now + self.start_up, engine=engine))
            self.pods.append(alive[-1])
        for pod in sorted(alive, key=lambda pod: pod.is_ready(self.now))[: max(0, len(alive) - replicas)]:
            pod.leaves_at = self.now + 20.0

    def _befall(self, event, number):
        if event in ("refuse", "quota"):
            self.refused = True
        elif event == "room":
            self.refused = False
        if not self.pods:
            return
        pod = self.pods[number % len(self.pods)]
        if event == "delete":
            pod.leaves_at = self.now + 5.0
        elif event == "evict":
            pod.trouble = "evicted"
        elif event == "block" and not pod.is_ready(self.now):
            pod.trouble = "blocked"
        elif event == "unblock" and pod.trouble == "blocked":
            pod.trouble, pod.ready_at = "", self.now + self.start_up
        elif event == "restart":
            pod.engine = FluidEngine(capacity=pod.engine.capacity, limits=pod.engine.limits)
        elif event == "unready":
            pod.ready_at = self.now + 9.0


def _moment(now):
    return (START + timedelta(seconds=now)).isoformat()
