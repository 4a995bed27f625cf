"""Messages between the API process and the engine process over a local socket.

Each message is one msgpack document (msgspec tagged structs) behind a 4-byte little-endian length. The engine process
never parses HTTP; the API process never sees a KV block.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from inflight_contract.kv_blocks import KVSource
from inflight_cost.model import CostModel, StepWork
from inflight_engine.block_events import BlockEvent
from inflight_engine.output import Pooled, PromptLogprobs, TokenLogprobs
from inflight_engine.request import FinishReason, SamplingParams, Scheduling
from inflight_engine.runner_info import RunnerInfo
from inflight_fit.online import GOOD_ERROR
from inflight_settings.limits import Limits, LimitsInForce


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """`prompt_token_ids`: int32 little-endian bytes; None: those of the `AddRequest` before. `arrival_time`: seconds,
    system-wide monotonic clock. `announce_start`: its start is announced by `Starting`. `external_id`: the client's id
    of the request (X-Request-Id), for log lines. `output_token_ids`: of a continued request, the tokens that it has, as
    bytes too. The rest as in `Request`."""

    request_id: int
    prompt_token_ids: bytes | None
    sampling: SamplingParams
    arrival_time: float
    scheduling: Scheduling = Scheduling()
    announce_start: bool = False
    external_id: str = ""
    output_token_ids: bytes = b""
    kv_source: KVSource | None = None


class CancelRequest(msgspec.Struct, frozen=True, tag=True):
    """End a request now; its slot and blocks are free in the next step. Unknown ids are no error: it may just have
    finished. `reason` is `stop` for a stop string found by the API process."""

    request_id: int
    reason: FinishReason


class Configure(msgspec.Struct, frozen=True, tag=True):
    """Settings that change while the engine runs, checked by the API process. All take effect with the next step. The
    answer is `Configured`.

    Attributes:
        class_weights: weights of the service classes whose weight changes.
    """

    call_id: int
    limits: LimitsInForce
    class_weights: dict[str, float] = {}


class StepCost(msgspec.Struct, frozen=True, tag=True):
    """Step-cost factors that the API process fitted to recent steps. Sent periodically, without an answer.

    Attributes:
        error: median relative error of the steps that the factors are fitted to.
        steps: number of these steps; steps that were forgotten in part count in part.
    """

    model: CostModel
    error: float
    steps: float

    @property
    def good(self) -> bool:
        return self.error <= GOOD_ERROR


class FlushRecord(msgspec.Struct, frozen=True, tag=True):
    """Write what is recorded so far to the file. Answered by `RecordFlushed`."""

    call_id: int


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Give back the memory of the KV cache, if there is nothing to do. Answered by `Slept`. The next request wakes the
    engine."""

    call_id: int


class ReadBlocks(msgspec.Struct, frozen=True, tag=True):
    """Read blocks of the KV cache for another engine. `hashes`: of consecutive blocks, joined. Answered by
    `BlocksRead`."""

    call_id: int
    hashes: bytes


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Leave the loop and exit 0."""


class WeightsRead(msgspec.Struct, frozen=True):
    """Bytes of weights that the engine process read from peers and from the source, and how often a peer failed. What
    was in the model cache does not count."""

    peer_bytes: int
    source_bytes: int
    peer_failures: int


class EngineReady(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and the first request may come.

    Attributes:
        capacity: maximum of the live limits.
        weights: how they came; None: peers are not asked.
    """

    capacity: Limits
    runner: RunnerInfo
    weights: WeightsRead | None = None


class Imported(msgspec.Struct, frozen=True, tag=True):
    """A spare has imported its modules. Its first message."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The model's weights are being read. Sent about once a second until `EngineReady`.

    Attributes:
        read_bytes, total_bytes: that were read, and all of them.
        seconds: since reading began.
    """

    read_bytes: int
    total_bytes: int
    seconds: float


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """A request left the waiting queue for a slot: at first, or again after a preemption.

    Attributes:
        num_cached_tokens: of its tokens, in the prefix cache or the tier behind it.
    """

    request_id: int
    slot: int
    num_cached_tokens: int = 0


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request ended. `refusal`: why its grammar or its rules of tokens cannot be followed, for the client."""

    request_id: int
    reason: FinishReason
    refusal: str = ""


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """State after the step, and the cost of the step.

    Attributes:
        waiting_prompt_tokens: tokens not yet computed of all requests without a slot or still in prefill.
        kv_usage: share of KV blocks in use, 0..1.
        num_preemptions: since start.
        num_tier_blocks: blocks of host memory whose content can be found.
        num_stored_blocks, num_loaded_blocks, num_failed_loads: blocks copied to host memory and from there since start,
            and those that were damaged there.
        num_disk_blocks: blocks on the disk.
        num_disk_stored, num_disk_loaded, num_disk_failed, num_disk_dropped, disk_seconds_per_block: as in `DiskWork`.
        disk_wait_seconds, num_disk_slower, num_disk_stalled, num_disk_full, num_disk_late: as in `TierLoads`.
        num_peer_loaded, num_peer_failed, peer_seconds_per_block: as in `PeerReader`. num_peer_late: as in
            `TierLoads`.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache and found there, since start.
        step_seconds: from the moment when the step was planned, or when the step before it was done if that came later,
            until it was done: steps that overlap share no time, so all of them together are the time spent in steps.
        schedule_seconds: time of the scheduler to plan the step and to take its tokens in. Where steps overlap the
            planning happens while the step before is computed.
        decode_kv_tokens: tokens whose keys and values the step's decodes read.
        num_out_of_memory: steps since start for which the device had no memory at once, or none at all.
        prefill_context_tokens, copied_tokens: as in `StepWork`.
        num_forced_tokens: output tokens since start that were not sampled, as a grammar left no choice.
    """

    num_running: int
    num_waiting: int
    waiting_prompt_tokens: int
    kv_usage: float
    num_preemptions: int
    num_tier_blocks: int
    prefix_queries: int
    prefix_hits: int
    num_prefill_tokens: int
    num_decode_tokens: int
    step_seconds: float
    schedule_seconds: float
    decode_kv_tokens: int = 0
    num_out_of_memory: int = 0
    prefill_context_tokens: int = 0
    copied_tokens: int = 0
    num_forced_tokens: int = 0
    num_stored_blocks: int = 0
    num_loaded_blocks: int = 0
    num_failed_loads: int = 0
    num_disk_blocks: int = 0
    num_disk_stored: int = 0
    num_disk_loaded: int = 0
    num_disk_failed: int = 0
    num_disk_dropped: int = 0
    disk_seconds_per_block: float = 0.0
    num_disk_slower: int = 0
    num_disk_stalled: int = 0
    num_disk_full: int = 0
    num_disk_late: int = 0
    disk_wait_seconds: float = 0.0
    num_peer_loaded: int = 0
    num_peer_failed: int = 0
    num_peer_late: int = 0
    peer_seconds_per_block: float = 0.0

    @property
    def work(self) -> StepWork:
        """The work that the step computed."""
        return StepWork(
            self.num_decode_tokens,
            self.num_prefill_tokens,
            self.decode_kv_tokens,
            self.prefill_context_tokens,
            self.copied_tokens,
        )


SHORT_STEP_SECONDS = 5.0
"""Longest duration of a step that was not announced by `LongStep`."""


class LongStep(msgspec.Struct, frozen=True, tag=True):
    """A step begins that may take more than `SHORT_STEP_SECONDS`.

    Attributes:
        step: its number; `StepReport.step` of its report, or of a later one, ends it.
        seconds: longest duration, from the durations of earlier steps; after that the engine counts as hung.
    """

    step: int
    seconds: float


class Starting(msgspec.Struct, frozen=True, tag=True):
    """A step begins in which these requests take a slot for the first time in this engine process. If it dies in that
    step, the API process knows that they were in it. Only requests with `announce_start` are named."""

    request_ids: list[int]


class StepReport(msgspec.Struct, frozen=True, tag=True):
    """Results of a step, sent in the order of the steps. Also sent, without tokens, when requests ended or were
    cancelled outside a step.

    Attributes:
        admitted: requests that got a slot, before the tokens of this step.
        slots, token_ids: int32 little-endian bytes of equal length: the token sampled for each slot, then the tokens
            that must follow it in some slots, in order. A slot whose request ended while the step was under way is not
            among them.
        logprobs: log-probabilities of the tokens whose requests asked for them.
        finished: requests that ended, after the tokens of this step; a finishing request's last token is among them.
        prompt_logprobs: log-probabilities of the prompts whose requests asked for them. All of a prompt are reported
            with its first token or before; after a preemption some may be reported again.
        preempted: requests that lost their slot to others in this step.
        pooled: hidden states of prompts whose requests asked for them, with the first token.
    """

    step: int
    admitted: list[Admission]
    slots: bytes
    token_ids: bytes
    logprobs: list[TokenLogprobs]
    finished: list[Finished]
    stats: StepStats
    prompt_logprobs: list[PromptLogprobs] = []
    preempted: list[int] = []
    pooled: list[Pooled] = []


class Configured(msgspec.Struct, frozen=True, tag=True):
    """The settings in force. `class_weights`: weights of all service classes."""

    call_id: int
    limits: LimitsInForce
    class_weights: dict[str, float]


class RecordFlushed(msgspec.Struct, frozen=True, tag=True):
    call_id: int


class Slept(msgspec.Struct, frozen=True, tag=True):
    """Answers `Sleep`.

    Attributes:
        stats: of an engine that gave the cache back; None: it has requests, or blocks on their way to or from the disk,
            and goes on with its cache.
    """

    call_id: int
    stats: StepStats | None


class BlocksRead(msgspec.Struct, frozen=True, tag=True):
    """Answers `ReadBlocks`, with the leading blocks that are here and fit in one answer.

    Attributes:
        checksums: int64 little-endian bytes, one for each block.
        path, num_bytes: file with the blocks, until the next `ReadBlocks`.
    """

    call_id: int
    checksums: bytes
    path: str
    num_bytes: int


class BlocksChanged(msgspec.Struct, frozen=True, tag=True):
    """Blocks can be found by content from now on, or are lost, in order; where `EngineConfig.block_events` is set."""

    events: list[BlockEvent]


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine process cannot go on; `message` is one sentence a person can act on."""

    message: str


ToEngine: TypeAlias = AddRequest | CancelRequest | Configure | StepCost | FlushRecord | Sleep | ReadBlocks | Shutdown
FromEngine: TypeAlias = (
    Imported
    | Loading
    | EngineReady
    | LongStep
    | Starting
    | StepReport
    | Configured
    | RecordFlushed
    | Slept
    | BlocksRead
    | BlocksChanged
    | EngineFailed
)
