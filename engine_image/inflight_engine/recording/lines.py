"""The recording's format: one JSON array a line, the whole file compressed with gzip.

The first line is a `Header`. Each later line starts with a tag that names its kind of `Event`; the fields follow in
order. The inputs and the steps of the scheduler stand in the order in which they happened, so `zcat` shows a run, and a
line can be changed by hand and replayed. A step's line stands where its tokens were taken in; where the next step was
planned just before that, the line says so.

A step has a digest of its plan, not the plan: the scheduler plans it again from the same inputs. No token is ever
written. Prompts and outputs appear as their lengths, and as numbers for the content of their full blocks: equal numbers
mean that the prefix cache saw equal blocks.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import FinishReason, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import Slots, StepPlan
from inflight_settings.limits import Limits

HEADER_TAG = "inflight-engine schedule"
FORMAT_VERSION = 10
"""Version of the format, raised when lines or their meaning change. A reader takes only files of its own version."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Micros = Annotated[int, msgspec.Meta(ge=0)]
BlockRuns: TypeAlias = list[tuple[Annotated[int, msgspec.Meta(ge=0)], Count]]
"""Numbers of blocks as runs of consecutive ones: the first number, and how many."""


class Header(msgspec.Struct, frozen=True, tag_field="record", tag=HEADER_TAG):
    """The first line, the only one that is an object.

    Attributes:
        version: the format's, `FORMAT_VERSION`.
        program: version of the program that wrote it.
        started: when the recording began, RFC 3339 in UTC.
        kv_bytes_per_token: keys and values of a token; None: unknown.
    """

    version: int
    program: str
    started: str
    config: SchedulerConfig
    kv_bytes_per_token: int | None = None


class Added(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    """A request was queued.

    Attributes:
        arrival_time: seconds on the engine's monotonic clock, which the `priority` and `deadline` policies compare.
        num_output_tokens: the number of tokens that a continued request came with.
        scheduling: without the salt, and with a pseudonym for the tenant that is valid in this recording only; the
            empty tenant stays empty.
        blocks: the numbers of its full blocks; empty without a prefix cache.
    """

    request_id: int
    arrival_time: float
    num_prompt_tokens: Count
    num_output_tokens: Count
    max_tokens: Count
    scheduling: Scheduling
    blocks: BlockRuns


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """A request was ended from outside."""

    request_id: int
    reason: FinishReason


class LimitsChanged(msgspec.Struct, frozen=True, array_like=True, tag="limits"):
    """Other limits are in force from the next step."""

    limits: Limits
    revision: int


class WeightsChanged(msgspec.Struct, frozen=True, array_like=True, tag="weights"):
    """Some service classes have new weights."""

    weights: dict[str, float]


class RatesChanged(msgspec.Struct, frozen=True, array_like=True, tag="rates"):
    """The scheduler weighs loading against computing by other rates; None: they are unknown."""

    rates: LoadRates | None


class PrefillCostChanged(msgspec.Struct, frozen=True, array_like=True, tag="cost"):
    """The scheduler predicts the prefills of later requests with another cost model; None: it predicts nothing."""

    cost: CostModel | None


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time"):
    """Requests that wait had become late when `step` was planned at `now`, seconds on the clock of
    `Added.arrival_time`. The time makes no difference to a step without such a line."""

    step: Count
    now: float


class Fetching(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """Blocks begin to come from behind the tier in host memory, which holds places for those that it does not have.

    Attributes:
        number: of the fetch.
        blocks: the numbers of their contents.
    """

    number: Count
    blocks: BlockRuns


class Fetched(msgspec.Struct, frozen=True, array_like=True, tag="fetched"):
    """So many leading blocks of a fetch have come; the rest does not."""

    number: Count
    count: Count


class CacheForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """The content of all blocks is lost, on the device and in host memory: the engine went to sleep."""


class BlocksFilled(msgspec.Struct, frozen=True, array_like=True, tag="blocks"):
    """A request filled more blocks, behind those of earlier lines. The line follows the step that filled the last
    one."""

    request_id: int
    blocks: BlockRuns


class Ended(NamedTuple):
    """A request ended with the tokens of the step."""

    request_id: int
    reason: FinishReason


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A step was computed, or failed.

    Attributes:
        step: its number.
        micros: the duration of the whole step, microseconds.
        work: what it computed.
        digest: see `PlanDigest`.
        ended: the requests that ended with its tokens; None if the step failed: it gave no tokens, and the scheduler
            took none in.
        ahead: the scheduler was asked for the next step before it took this one's tokens in, whether it had one to give
            or not.
        failed_slots: slots that the step had no memory for.
        failed_loads: slots for which the step could not load what it was to.
        forced: slots of requests that had to go on with certain tokens after those of the step, and their number.
    """

    step: Count
    micros: Micros
    work: StepWork
    digest: int
    ended: list[Ended] | None
    ahead: bool
    failed_slots: list[Count]
    failed_loads: list[Count]
    forced: list[tuple[Count, Count]]

    def again(self, micros: int) -> Step:
        """Return the next step, if it repeats this one: equal decisions, and each context is one token longer."""
        longer = self.work._replace(decode_kv_tokens=self.work.decode_kv_tokens + self.work.decode_seqs)
        return Step(self.step + 1, micros, longer, self.digest, [], self.ahead, [], [], [])


class Repeated(msgspec.Struct, frozen=True, array_like=True, tag="same"):
    """Steps that each repeat the one before, as `Step.again` says. The reader makes steps of them.

    Attributes:
        micros: the duration of each, microseconds.
    """

    micros: list[Micros]


Input: TypeAlias = (
    Added
    | Cancelled
    | LimitsChanged
    | WeightsChanged
    | RatesChanged
    | PrefillCostChanged
    | TimePassed
    | Fetching
    | Fetched
    | CacheForgotten
    | BlocksFilled
)
Event: TypeAlias = Input | Step
Line: TypeAlias = Event | Repeated


class PlanDigest:
    """Digests of one scheduler's plans: equal decisions have equal digests, in any process and on any machine.

    A digest covers which requests lose and take slots, the tokens they find computed and load, chunks,
    decodes and the number of blocks copied out. It leaves out
    the number of the step, and which blocks the pool hands out.
    """

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_slots: Slots | None = None
        self._of_slots = 0

    def of(self, plan: StepPlan) -> int:
        """Return the CRC-32 of the decode slots, as little-endian int64, and of other decisions, in MessagePack."""
        if plan.decode_slots is not self._decode_slots:  # the same array object while the set does not change
            self._decode_slots = plan.decode_slots
            self._of_slots = crc32(plan.decode_slots.astype("<i8", copy=False).tobytes())
        if not (plan.prefills or plan.releases or plan.starts or plan.preemptions or plan.stores):
            return self._of_slots
        decisions = (
            plan.num_tokens,
            plan.releases,
            [(each.request_id, each.slot) for each in plan.preemptions],
            [(each.request_id, each.slot, each.num_computed_tokens, len(each.host_block_ids)) for each in plan.starts],
            [(each.slot, each.start, each.length) for each in plan.prefills],
            0 if plan.stores is None else len(plan.stores.block_ids),
        )
        return crc32(self._encode(decisions), self._of_slots)
