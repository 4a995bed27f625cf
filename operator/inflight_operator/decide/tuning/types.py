"""Inputs and state of the tuning decision. All types are immutable."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from inflight_cost.capacity import Replica, Targets, Workload
from inflight_operator.decide.decision import Decision, Reason
from inflight_settings.limits import Knob, Limits

MIN_REQUESTS = 5
"""Finished requests from which their p95 TPOT is used; below, the mean inter-token latency replaces it."""

MIN_TOKENS = 8
"""Generated tokens from which there is traffic to judge by."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets in seconds; None: no target.

    Attributes:
        ttft_per_token: seconds that each token of a prompt adds to its TTFT target.
    """

    ttft_p95: float | None = None
    tpot_p95: float | None = None
    ttft_per_token: float = 0.0

    @property
    def targets(self) -> Targets:
        """The targets in the form that the cost model takes."""
        return Targets(self.ttft_p95, self.tpot_p95, self.ttft_per_token)

    def of_mean(self, prompt_tokens: float) -> Slo:
        """Returns the targets with one TTFT target for all prompts, that of a mean prompt: latency histograms contain
        no prompt lengths, so only this target is comparable with them."""
        return Slo(self.targets.ttft_of(prompt_tokens), self.tpot_p95)


@dataclass(frozen=True, slots=True)
class TuningPolicy:
    """Parameters of tuning; the defaults are the operator's.

    Attributes:
        window: seconds measured before a decision.
        dead_band: a latency within target * (1 +/- this) causes no step.
        room: TPOT below this share of the target allows a step up.
        preemptions_per_min: preemptions per minute of one pod; a higher rate lowers the slots.
        kv_full: KV utilization that additional slots must not reach.
        throughput_loss: share of throughput that a change may cost while requests wait before it is reverted.
        fence: seconds for which reverted limits are remembered. corrected: the same of corrections of the cost model.
        out_of_reach: seconds without further steps down after one showed that the target is unreachable.
        drain_windows: maximum windows to wait until a lowered slot limit takes effect.
        effect: minimum gain by the cost model, as a share, to move to other limits.
        settled_effect: the same once limits have been settled: variation around the same mean causes no move.
        episode: seconds after the first of several moves until limits count as settled.
        obvious: ratio of the model's values of its limits and of the first ones from which the first move needs no
            whole window. early: share of the TPOT target that such a move uses. early_evidence: first tokens and
            finished requests from which it is made; requests that arrived tell as much of the load, `evidence` of them.
        sure_error: error of a cost model up to which its limits are set in one move; above, half of the way at a time.
        loss: share of requests in target that a change may cost, beyond chance.
        missed: share of requests in target below which the limits in force are not worth keeping on most pods.
        evidence: first tokens and finished requests from which a change is judged before `drain_windows` are over.
        settle: maximum seconds excluded from measurement after a change: requests that finish then ran with other
            limits.
    """

    window: float = 15.0
    dead_band: float = 0.1
    room: float = 0.8
    preemptions_per_min: float = 1.0
    kv_full: float = 0.9
    throughput_loss: float = 0.15
    fence: float = 7200.0
    corrected: float = 900.0
    out_of_reach: float = 900.0
    drain_windows: float = 3.0
    effect: float = 0.02
    settled_effect: float = 0.1
    episode: float = 600.0
    obvious: float = 1.5
    early: float = 0.85
    early_evidence: int = 5
    sure_error: float = 0.2
    loss: float = 0.05
    missed: float = 0.9
    evidence: int = 20
    settle: float = 15.0

    @property
    def patience(self) -> float:
        """Seconds after which a change is judged by the available measurements."""
        return self.settle + self.window * (1 + self.drain_windows)


@dataclass(frozen=True, slots=True)
class Quality:
    """Service quality over a time span, of one pod or of several.

    Attributes:
        first_tokens, finished: requests that got their first token, and that ended.
        ttft_within, tpot_within: shares of these requests within the targets; 1 without a target or without any.
        tokens_per_s: generated tokens per second, per pod.
        load: arrived requests a second, per pod; first tokens a second if arrivals are not reported.
        waiting: requests per pod, mean.
    """

    first_tokens: int
    finished: int
    ttft_within: float
    tpot_within: float
    tokens_per_s: float
    load: float
    waiting: float

    @property
    def good(self) -> float:
        """Share of requests that met both targets, if the two were independent."""
        return self.ttft_within * self.tpot_within

    @property
    def evidence(self) -> int:
        return min(self.first_tokens, self.finished)


@dataclass(frozen=True, slots=True)
class PodQuality:
    """Service quality of a pod that accepts limits."""

    uid: str
    name: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class TuningModel:
    """A reliable cost model, and the requests that it is used for.

    Attributes:
        error: median relative error of the cost model.
    """

    replica: Replica
    workload: Workload
    error: float


@dataclass(frozen=True, slots=True)
class TuningView:
    """Measurements since the window started, over all ready pods of the service.

    Attributes:
        time: seconds on a steady clock.
        span: seconds measured since the window started.
        pods: measured pods.
        tpot_p95: seconds, of requests that finished; None without any.
        tpot_late: share of these requests that are above the target for certain, 0 to 1.
        finished: requests that `tpot_p95` is computed from.
        itl_mean, itl_p50, itl_p95: inter-token latency in seconds; None without tokens.
        ttft_p95: seconds; None without first tokens.
        generated_tokens: tokens generated in the window.
        tokens_per_s: tokens generated per second. Prompt tokens do not count: a burst of prompts would appear as
        throughput. step_tokens_p50, step_tokens_p95: tokens of one step; None if the engine does not report them.
        running, waiting: requests per pod, mean over the window. running_now: requests that run in the fullest pod at
        the end of the window. waiting_prompt_tokens: uncomputed prompt tokens per pod, mean; None if the engine does
        not report them. kv_usage: the largest share of KV blocks in use in any pod, 0 to 1. preemptions_per_min:
        preemptions per minute, per pod. quality: service quality of all pods. by_pod: service quality of each pod that
        accepts limits.
    """

    time: float
    span: float
    pods: int
    tpot_p95: float | None
    tpot_late: float
    finished: int
    itl_mean: float | None
    itl_p50: float | None
    itl_p95: float | None
    ttft_p95: float | None
    generated_tokens: float
    tokens_per_s: float
    step_tokens_p50: float | None
    step_tokens_p95: float | None
    running: float
    running_now: int
    waiting: float
    waiting_prompt_tokens: float | None
    kv_usage: float
    preemptions_per_min: float
    quality: Quality
    by_pod: tuple[PodQuality, ...] = ()

    def kept(self) -> TuningView:
        """Returns these measurements without what they may be computed from."""
        return TuningView(**{one.name: getattr(self, one.name) for one in fields(TuningView)})

    @property
    def has_traffic(self) -> bool:
        return self.generated_tokens >= MIN_TOKENS

    @property
    def tpot(self) -> float | None:
        """p95 of finished requests where enough finished, else the mean inter-token latency of the running ones."""
        if self.tpot_p95 is not None and self.finished >= MIN_REQUESTS:
            return self.tpot_p95
        return self.itl_mean

    @property
    def pace(self) -> float | None:
        """Seconds per token of the setting in force. A request that finishes in this window may have run mostly under
        earlier limits; inter-token latencies are all of this window."""
        return self.itl_mean if self.itl_mean is not None else self.tpot_p95


@dataclass(frozen=True, slots=True)
class Step:
    """Step of one limit, with its reason."""

    knob: Knob
    frm: int
    to: int
    reason: Reason

    @property
    def up(self) -> bool:
        return self.to > self.frm

    def made(self, limits: Limits, state: TuningState) -> TuningDecision:
        return TuningDecision(limits.with_(self.knob, self.to), (self._decision(applied=True),), self.reason, state)

    def advised(self, limits: Limits, state: TuningState) -> TuningDecision:
        would = Reason("Recommending", {"knob": self.knob, "from": self.frm, "to": self.to}, held=self.reason)
        return TuningDecision(limits, (self._decision(applied=False),), would, state)

    def _decision(self, *, applied: bool) -> Decision:
        return Decision("Tuning", self.knob, self.frm, self.to, self.reason, applied)


@dataclass(frozen=True, slots=True)
class Trial:
    """A step by the rules that is in force and not judged yet, and the measurements before it."""

    step: Step
    before: TuningView
    started: float


@dataclass(frozen=True, slots=True)
class Canary:
    """The pod that runs with other limits than the others."""

    uid: str
    name: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Move:
    """Limits by the cost model that are in force, on all pods or on one, and not judged yet.

    Attributes:
        frm, to: before and since.
        wanted: limits proposed by the model.
        before: service quality before the move.
        pods: measured at that time.
        started: seconds on the steady clock.
        canary: the one pod that has them; None: all have.
        reason: reason of the move.
    """

    frm: Limits
    to: Limits
    wanted: Limits
    before: Quality
    pods: int
    started: float
    canary: Canary | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Bracket:
    """An interval between good and reverted limits: values within it may be better than both.

    Attributes:
        good: at least as good as the previous limits.
        bad: reverted.
        wanted: limits proposed by the model at that time; if it proposes others, the bracket does not apply.
        until: expiry.
    """

    good: Limits
    bad: Limits
    wanted: Limits
    until: float


@dataclass(frozen=True, slots=True)
class Fence:
    """A value of a knob that made service worse: steps in that direction end before it until `until`."""

    knob: Knob
    up: bool
    value: int
    until: float


@dataclass(frozen=True, slots=True)
class TuningState:
    """State carried from one decision to the next. A new operator starts with `TuningState(window_start=now)`, and what
    the status has of it.

    Attributes:
        window_start: time from which measurements count.
        trial: the last step by the rules, while it is being measured.
        fences: values that the rules tried and reverted.
        move: the last limits by the cost model, while they are being measured.
        bracket: around the best limits, after a reverted move.
        episode: when the last series of moves began; None before the first move.
        tighten: share of the TPOT target that the model solves for: steps of a real engine may take longer than its
            model says.
        memory: share of the KV cache that it solves for, relative to the usual one: requests that preempt each other
            are longer than the mean.
        tighten_until, memory_until: their expiry, each by its own cause.
        modelled: the limits that the cost model last found best; None where rules decide.
    """

    window_start: float
    trial: Trial | None = None
    fences: tuple[Fence, ...] = ()
    move: Move | None = None
    bracket: Bracket | None = None
    episode: float | None = None
    tighten: float = 1.0
    tighten_until: float = math.inf
    memory: float = 1.0
    memory_until: float = math.inf
    modelled: Limits | None = None

    @property
    def canary(self) -> Canary | None:
        return self.move.canary if self.move is not None else None

    def without_expired(self, now: float) -> TuningState:
        fences = tuple(fence for fence in self.fences if fence.until > now)
        bracket = None if self.bracket is not None and self.bracket.until <= now else self.bracket
        state = replace(self, fences=fences, bracket=bracket)
        if now >= self.tighten_until:
            state = replace(state, tighten=1.0, tighten_until=math.inf)
        if now >= self.memory_until:
            state = replace(state, memory=1.0, memory_until=math.inf)
        return state

    def corrected_as(self, other: TuningState) -> TuningState:
        """Returns this state with the corrections of `other`."""
        return replace(
            self,
            tighten=other.tighten,
            tighten_until=other.tighten_until,
            memory=other.memory,
            memory_until=other.memory_until,
        )


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """Attributes:
    limits: limits of the service from now on; `state.canary` may have others on one pod.
    changes: changes made (Auto) or advised (Recommend).
    reason: reason of the changes, or why nothing changes; its code is the reason of a condition.
    state: passed to the next decision.
    """

    limits: Limits
    changes: tuple[Decision, ...]
    reason: Reason
    state: TuningState
