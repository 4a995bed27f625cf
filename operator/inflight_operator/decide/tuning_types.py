"""What the tuning decision takes and keeps. All of it is immutable."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight_operator.decide.decision import Decision, Reason
from inflight_operator.limits import Knob, Limits

MIN_REQUESTS = 5
"""Finished requests from which their p95 TPOT is believed; below, the mean inter-token latency stands in."""

MIN_TOKENS = 8
"""Generated tokens from which there is traffic to judge by."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets in seconds; None: no target."""

    ttft_p95: float | None = None
    tpot_p95: float | None = None


@dataclass(frozen=True, slots=True)
class TuningPolicy:
    """How the tuning steps; the defaults are the operator's.

    Attributes:
        window: seconds measured before a decision.
        dead_band: a latency within target * (1 +/- this) asks for nothing.
        room: TPOT below this share of the target counts as room for a step up.
        preemptions_per_min: more than this asks for fewer slots.
        kv_full: KV utilization that adding slots must not lead to.
        throughput_loss: share of throughput a useless step down may cost before it is taken back.
        cool_down: seconds a direction rests after it was taken back.
        out_of_reach_cool_down: seconds without further steps down once one showed that none can reach the target.
        drain_windows: windows to wait at most for a lowered slot limit to take hold.
    """

    window: float = 15.0
    dead_band: float = 0.1
    room: float = 0.8
    preemptions_per_min: float = 1.0
    kv_full: float = 0.9
    throughput_loss: float = 0.15
    cool_down: float = 120.0
    out_of_reach_cool_down: float = 900.0
    drain_windows: float = 3.0


@dataclass(frozen=True, slots=True)
class TuningView:
    """What was measured since the window started, over all ready pods of the service.

    Attributes:
        time: seconds on a steady clock.
        span: seconds measured since the window started.
        pods: that were measured.
        tpot_p95: seconds, of requests that finished; None without any.
        finished: requests that `tpot_p95` stands on.
        itl_mean, itl_p50, itl_p95: inter-token latency in seconds; None without tokens.
        ttft_p95: seconds; None without first tokens.
        generated_tokens: tokens generated in the window.
        tokens_per_s: tokens generated per second. Not prompt tokens too: a burst of prompts would look like throughput.
        step_tokens_p50, step_tokens_p95: tokens of one step; None when the engine does not tell.
        running, waiting: requests per pod, mean over the window.
        running_now: requests that run in the fullest pod at the end of the window.
        waiting_prompt_tokens: prompt tokens per pod not computed yet, mean; None when the engine does not tell.
        kv_usage: the largest share of KV blocks in use in any pod, 0 to 1.
        preemptions_per_min: over all pods.
    """

    time: float
    span: float
    pods: int
    tpot_p95: float | None
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
        """Seconds per token of the setting in force. A request that finishes in this window may have spent most of its
        life under an earlier setting; inter-token latencies are all of this window."""
        return self.itl_mean if self.itl_mean is not None else self.tpot_p95


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one limit, and why."""

    knob: Knob
    frm: int
    to: int
    reason: Reason

    @property
    def up(self) -> bool:
        return self.to > self.frm

    def applied_to(self, limits: Limits) -> Limits:
        return limits.with_(self.knob, self.to)

    def decision(self, *, applied: bool) -> Decision:
        return Decision("Tuning", self.knob, self.frm, self.to, self.reason, applied)


@dataclass(frozen=True, slots=True)
class Trial:
    """A step in force that has not been judged yet, and what was measured before it."""

    step: Step
    before: TuningView
    started: float


@dataclass(frozen=True, slots=True)
class Block:
    """A direction that made things worse lately and rests until `until`."""

    knob: Knob
    up: bool
    until: float


@dataclass(frozen=True, slots=True)
class TuningState:
    """What one decision leaves to the next. A new operator starts with `TuningState(window_start=now)`.

    Attributes:
        window_start: time from which measurements count.
        trial: the last step, while it is being measured.
        blocks: directions that rest.
    """

    window_start: float
    trial: Trial | None = None
    blocks: tuple[Block, ...] = ()

    def blocked(self, knob: Knob, *, up: bool) -> bool:
        return any(block.knob == knob and block.up == up for block in self.blocks)

    def without_expired(self, now: float) -> TuningState:
        return replace(self, blocks=tuple(block for block in self.blocks if block.until > now))
