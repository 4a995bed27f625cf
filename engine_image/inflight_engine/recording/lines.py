"""The recording's format: one JSON array a line, the whole file compressed with gzip.

The first line is a `Header`. Each later line is one of `Event`: its first element says which, the rest are the fields
in order. Inputs and decisions of the scheduler stand in the order in which they happened, so `zcat` shows a
run, and a line can be changed by hand and replayed. A step's line stands where its tokens were taken in; where the
next step was planned just before that, it says so.

No token is ever written. Of prompts and outputs there are only their lengths, and numbers for the content of full
blocks: equal numbers mean that the prefix cache saw equal blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec

from inflight_cost.model import CostModel
from inflight_engine.request import FinishReason
from inflight_engine.scheduling.config import SchedulerConfig

HEADER_TAG = "inflight-engine schedule"
FORMAT_VERSION = 5
"""Raised when an older program could not replay what is written. A reader refuses versions newer than its own, and
reads all older ones: in format 1 no step was planned ahead, in format 2 time changed no decision, in format 3 steps
failed as a whole, in format 4 no request was continued."""

MAX_INT32 = 2**31 - 1

NO_CONTENT = 0
"""The token that stands for every one the replay need not tell from others."""
STOP_TOKEN = 1
"""The token that ends a request as `stop` in a replay."""
FIRST_CONTENT_ID = 2
"""Content ids are tokens in a replay: a full block's last one. So they begin above the two."""
MAX_CONTENT_ID = MAX_INT32 - 2**24
"""No new ones begin above it, so that all of them fit in a token id, int32."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
Slot = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
Micros = Annotated[int, msgspec.Meta(ge=0)]
BlockRuns: TypeAlias = list[Count]
"""Content ids as runs: [first, how many, first, how many, ...]. New content gets the next numbers, so it is one run."""


class Header(msgspec.Struct, frozen=True, tag_field="record", tag=HEADER_TAG):
    """The first line, the only one that is an object.

    Attributes:
        version: the format's, `FORMAT_VERSION`.
        program: version of the program that wrote it.
        started: when the recording began, RFC 3339 in UTC.
    """

    version: int
    program: str
    started: str
    config: SchedulerConfig


class Added(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    """A request was queued. `arrival_time`: as the scheduler saw it, seconds on the engine's monotonic clock, whole:
    the `priority` and `deadline` policies compare it. `tenant`: a name made up for this recording, empty for the empty
    one. `prompt_blocks`: of its full blocks; empty without a prefix cache. `num_output_tokens`: with which a continued
    request came."""

    request_id: int
    arrival_time: float
    num_prompt_tokens: Count
    max_tokens: Count
    service_class: str
    tenant: str
    priority: int
    predicted_tokens: int | None
    prompt_blocks: BlockRuns
    num_output_tokens: Count = 0


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """A request was ended from outside."""

    request_id: int
    reason: FinishReason


class LimitsChanged(msgspec.Struct, frozen=True, array_like=True, tag="limits"):
    """In force from the next step."""

    max_num_seqs: Count
    max_num_batched_tokens: Count
    revision: int


class WeightsChanged(msgspec.Struct, frozen=True, array_like=True, tag="weights"):
    """New weights of some service classes."""

    weights: dict[str, float]


class RatesChanged(msgspec.Struct, frozen=True, array_like=True, tag="rates"):
    """`rates`: prefill and copy, in tokens a second; None: not known."""

    rates: tuple[float, float] | None


class PrefillCostChanged(msgspec.Struct, frozen=True, array_like=True, tag="cost"):
    """What the prefills of later requests are predicted with; None: nothing."""

    cost: CostModel | None


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time"):
    """When the scheduler was asked for `step`, at `now`, requests that wait had become late. `now` is on the clock of
    `Added.arrival_time`; it makes no difference in calls without such a line."""

    step: Count
    now: float


class ChunksFailed(msgspec.Struct, frozen=True, array_like=True, tag="nomemory"):
    """The step of the next step's line had no memory for these slots. Requests that ended with it are in that line."""

    slots: list[Slot]


class BlocksFilled(msgspec.Struct, frozen=True, array_like=True, tag="blocks"):
    """The content of a request's next full blocks, behind those of earlier lines: written when it is known, which is
    after the steps that filled them."""

    request_id: int
    blocks: BlockRuns


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A request took a slot. `num_computed_tokens` came from the prefix cache or, if `swapped_in`, from the host."""

    request_id: int
    slot: Slot
    num_computed_tokens: Count
    swapped_in: bool


class Preempted(msgspec.Struct, frozen=True, array_like=True):
    """A request lost its slot. `swapped_out`: its keys and values went to host memory."""

    request_id: int
    slot: Slot
    swapped_out: bool


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens [start, start + length) of a slot were computed."""

    slot: Slot
    start: Count
    length: Count


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A request ended with the tokens of the step."""

    request_id: int
    reason: FinishReason


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A step that changed something.

    Attributes:
        step: its number.
        micros: how long the whole step took, microseconds.
        releases: slots given up since the step before.
        decodes: slots that joined or left those which compute one token, since the step before; ascending.
        num_tokens: tokens computed.
        ended: None if the step failed: it gave no tokens, and the scheduler took none in.
        ahead: the scheduler was asked for the next step before it took this one's tokens in; whether it had one to give
            or not.
    """

    step: Count
    micros: Micros
    releases: list[Slot]
    preemptions: list[Preempted]
    starts: list[Started]
    chunks: list[Chunk]
    decodes: list[Slot]
    num_tokens: Count
    ended: list[Ended] | None
    ahead: bool = False


class Repeated(msgspec.Struct, frozen=True, array_like=True, tag="same"):
    """Steps in which the same slots computed one token each as in the step before, planned ahead or not as that one,
    and nothing else happened: how long each took, microseconds."""

    micros: list[Micros]


Event: TypeAlias = (
    Added
    | Cancelled
    | LimitsChanged
    | WeightsChanged
    | RatesChanged
    | PrefillCostChanged
    | TimePassed
    | ChunksFailed
    | BlocksFilled
    | Step
    | Repeated
)


def runs_of(content_ids: Sequence[int]) -> BlockRuns:
    runs: BlockRuns = []
    following = -1
    for content_id in content_ids:
        if content_id == following:
            runs[-1] += 1
        else:
            runs += (content_id, 1)
        following = content_id + 1
    return runs


def content_ids_of(runs: BlockRuns) -> Iterator[int]:
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, first + count)
