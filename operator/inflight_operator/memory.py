"""What the loop remembers of one service."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight_operator.api.types import Decision, InferenceService
from inflight_operator.decide.behavior import ScalingHistory
from inflight_operator.decide.tuning import TuningDecision
from inflight_operator.decide.tuning_types import Limits, TuningState
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.window import Window
from inflight_operator.render import LimitsInForce


@dataclass(slots=True)
class Memory:
    """What the loop keeps of one service from round to round. All of it can be made anew from the status, the
    children and the engines; a restart only means that windows fill again.

    Attributes:
        uid, generation: of the service; another uid is another service of the same name.
        replicas: ordered from the Deployment.
        limits: in force on the engines.
        window: samples of the engines.
        scaling, tuning: what earlier decisions left behind.
        tuning_note: the last tuning decision that had measurements to decide on.
        scraped_at: when the engines were last scraped.
        scrape_errors: why a pod, by uid, gave no sample the last time.
        told: for each pod, by uid, the revision it last took, and when.
        written_at: when the status was last written.
        unreported: decisions that are in no status yet.
    """

    uid: str
    generation: int
    replicas: int
    limits: LimitsInForce
    tuning: TuningState
    window: Window
    scaling: ScalingHistory = field(default_factory=ScalingHistory)
    tuning_note: TuningDecision | None = None
    scraped_at: float = float("-inf")
    scrape_errors: dict[str, str] = field(default_factory=dict)
    told: dict[str, tuple[int, float]] = field(default_factory=dict)
    written_at: float = float("-inf")
    unreported: tuple[Decision, ...] = ()

    def in_force(self, uid: str, sample: Sample) -> bool:
        """Whether this engine runs with the limits in force: it says so, or it took them after its last sample."""
        limits, told = self.limits, self.told.get(uid)
        if told is not None and told[0] == limits.revision and told[1] >= sample.time:
            return True
        shown = (sample.max_num_seqs, sample.max_num_batched_tokens, sample.revision)
        return shown == (limits.max_num_seqs, limits.max_num_batched_tokens, limits.revision)

    def take_limits(self, wanted: Limits, known_revision: int) -> None:
        """Puts `wanted` in force under a new revision, if it differs. `known_revision` is the newest that an engine
        has: engines refuse older ones, so go past it even where the status was lost."""
        limits = self.limits
        same = (wanted.max_num_seqs, wanted.max_num_batched_tokens) == (
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
        )
        if not same or known_revision > limits.revision:
            revision = max(limits.revision, known_revision) + 1
            self.limits = LimitsInForce(wanted.max_num_seqs, wanted.max_num_batched_tokens, revision)


def first_memory(service: InferenceService, ordered: int, now: float, span: float) -> Memory:
    """What a new operator process knows of a service: what its status and its Deployment tell.

    Args:
        service: with its status.
        ordered: replicas of the live Deployment, 0 without one.
        now: steady clock.
        span: seconds of samples to keep.
    """
    status, engine = service.status, service.spec.engine
    limits = LimitsInForce(engine.max_num_seqs, engine.max_num_batched_tokens, 0)
    if status.limits is not None:
        known = status.limits
        limits = LimitsInForce(known.max_num_seqs, known.max_num_batched_tokens, known.revision)
    return Memory(
        uid=service.metadata.uid,
        generation=service.metadata.generation,
        replicas=ordered or status.desired_replicas or service.spec.scaling.min_replicas,
        limits=limits,
        tuning=TuningState(window_start=now),
        window=Window(span),
    )
