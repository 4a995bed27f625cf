"""Writes the inputs of the scheduler and digests of its plans while the engine runs."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from typing import BinaryIO

import msgspec

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache.loading import LoadRates
from inflight_engine.recording.content import ContentNumbers
from inflight_engine.recording.lines import (
    FORMAT_VERSION,
    Added,
    BlockRuns,
    BlocksFilled,
    CacheForgotten,
    Cancelled,
    Ended,
    Fetched,
    Fetching,
    Header,
    Input,
    LimitsChanged,
    Line,
    PlanDigest,
    PrefillCostChanged,
    RatesChanged,
    Repeated,
    Step,
    TimePassed,
    WeightsChanged,
)
from inflight_engine.request import FinishReason, ForcedRun, Request, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_settings.limits import LimitsInForce

log = logging.getLogger(__name__)

MAX_BYTES = 2**30
"""Size of a recording, compressed."""
FLUSH_SECONDS = 1.0
"""Duration of the steps that a killed process loses at most."""
FLUSH_BYTES = 64 * 1024
"""Bytes of lines that are compressed at once."""

_GZIP = 16 + zlib.MAX_WBITS


class Recorder:
    """Hears of inputs and decisions of the scheduler right after each, in order, and writes the inputs and a digest of
    each plan.

    A recording never harms the engine. When it reaches `max_bytes`, or `sink` cannot be written (a full disk), it ends
    with one warning in the log, and the file stays readable.

    Args:
        sink: takes the gzip stream; closed by `close`, or when the recording ends early.
        is_cached: tells whether a block with this hash can be found in the prefix cache now. By it the recorder forgets
            hashes that nothing can meet again, so its memory stays bounded by the cache and the requests at hand.
        kv_bytes_per_token: for the header.
        max_bytes: compressed; exceeded by less than one flush.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        sink: BinaryIO,
        *,
        is_cached: Callable[[bytes], bool],
        kv_bytes_per_token: int | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._sink: BinaryIO | None = sink
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._compressor = zlib.compressobj(wbits=_GZIP)
        self._encoder = msgspec.json.Encoder()
        self._lines = bytearray()
        self._digests = PlanDigest()
        self._next: tuple[int, float, bool] | None = None
        """Digest, context of the decodes and look-ahead of a step that would repeat the last one."""
        self._repeated: list[int] = []
        self._unflushed_seconds = 0.0
        self._requests: dict[int, Request] = {}
        self._request_in: dict[int, int] = {}
        self._num_blocks: dict[int, int] = {}
        """Number of blocks of each request whose numbers are written."""
        self._contents = ContentNumbers(self._requests, is_cached)
        self._tenant_key = os.urandom(16)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._write_line(Header(FORMAT_VERSION, version("inflight"), started, config, kv_bytes_per_token))
        self.flush()

    @classmethod
    def to_file(
        cls,
        path: str,
        config: SchedulerConfig,
        is_cached: Callable[[bytes], bool],
        kv_bytes_per_token: int | None = None,
    ) -> Recorder:
        """Record to a new file; one that is there is overwritten.

        Raises:
            OSError: it cannot be opened; the message says why.
        """
        try:
            return cls(config, open(path, "wb"), is_cached=is_cached, kv_bytes_per_token=kv_bytes_per_token)
        except OSError as error:
            raise OSError(f"cannot record to {path}: {error.strerror}") from error

    def added(self, request: Request) -> None:
        """The scheduler took in a request."""
        if self._sink is None:
            return
        self._requests[request.request_id] = request
        self._write(
            Added(
                request_id=request.request_id,
                arrival_time=request.arrival_time,
                num_prompt_tokens=request.num_prompt_tokens,
                num_output_tokens=len(request.output_token_ids),
                max_tokens=request.sampling.max_tokens,
                scheduling=self._anonymous(request.scheduling),
                blocks=self._new_blocks(request),
            )
        )

    def cancelled(self, request_id: int, reason: FinishReason) -> None:
        """A request that was there was ended from outside."""
        self._write(Cancelled(request_id, reason))
        self._end_request(request_id)

    def limits(self, limits: LimitsInForce) -> None:
        self._write(LimitsChanged(limits.limits, limits.revision))

    def weights(self, weights: dict[str, float]) -> None:
        self._write(WeightsChanged(weights))

    def rates(self, rates: LoadRates | None) -> None:
        self._write(RatesChanged(rates))

    def prefill_cost(self, cost: CostModel | None) -> None:
        self._write(PrefillCostChanged(cost))

    def fetching(self, number: int, hashes: Sequence[bytes]) -> None:
        """Blocks begin to come from behind the tier."""
        if self._sink is not None:
            self._write(Fetching(number, self._contents.runs(hashes)))

    def fetched(self, number: int, count: int) -> None:
        """Blocks have come."""
        self._write(Fetched(number, count))

    def cache_forgotten(self) -> None:
        """No block has content any more."""
        self._write(CacheForgotten())

    def time_passed(self, step: int, now: float) -> None:
        """The scheduler was asked for a step, and `now` is its `last_change`."""
        self._write(TimePassed(step, now))

    def stepped(
        self,
        plan: StepPlan,
        work: StepWork,
        ended: list[Request],
        seconds: float,
        *,
        ahead: bool = False,
        failed_slots: Sequence[int] = (),
        failed_loads: Sequence[int] = (),
        forced: Sequence[ForcedRun] = (),
    ) -> None:
        """A step was planned, computed and taken in.

        Args:
            work: what it computed.
            ended: what `Scheduler.update` and `Scheduler.force` returned.
            seconds: how long the whole step took.
            ahead: between the step's plan and its `update` the scheduler was asked for the next one.
            failed_slots: slots that the step had no memory for, with which `Scheduler.fail_slots` was called.
            failed_loads: with which `Scheduler.fail_loads` was called after it.
            forced: with which `Scheduler.force` was called.
        """
        if self._sink is None:
            return
        digest, context = self._digests.of(plan), work.decode_kv_tokens
        if not (ended or failed_slots or failed_loads or forced) and self._next == (digest, context, ahead):
            self._repeated.append(_micros(seconds))
        else:
            reasons = [Ended(each.request_id, each.finish_reason) for each in ended if each.finish_reason]
            runs = [(run.slot, len(run.token_ids)) for run in forced]
            slots, loads = list(failed_slots), list(failed_loads)
            step = Step(plan.step, _micros(seconds), work, digest, reasons, ahead, slots, loads, runs)
            self._write_step(plan, step)
        self._next = digest, context + work.decode_seqs, ahead
        self._unflushed_seconds += seconds
        if self._unflushed_seconds >= FLUSH_SECONDS:
            self.flush()

    def failed(self, plan: StepPlan, work: StepWork, seconds: float, *, ahead: bool = False) -> None:
        """A step was planned but gave no tokens: `Scheduler.fail` was called for it or for the step before, and
        `Scheduler.update` was not. `ahead` as in `stepped`."""
        if self._sink is not None:
            step = Step(plan.step, _micros(seconds), work, self._digests.of(plan), None, ahead, [], [], [])
            self._write_step(plan, step)
            self._next = None

    def flush(self) -> None:
        """Compress and write all there is: the file then holds everything recorded so far."""
        if self._sink is None:
            return
        self._write_repeated()
        self._unflushed_seconds = 0.0
        self._put(self._compressed() + self._compressor.flush(zlib.Z_SYNC_FLUSH))
        if self._num_bytes >= self._max_bytes:
            log.warning("the recording has reached its limit of %d bytes and ends here", self._max_bytes)
            self.close()

    def close(self) -> None:
        """Write the rest and close the file. Later inputs and steps are not recorded."""
        if self._sink is None:
            return
        self._write_repeated()
        self._put(self._compressed() + self._compressor.flush(zlib.Z_FINISH))
        self._end()

    def _write_step(self, plan: StepPlan, step: Step) -> None:
        self._write(step)
        for preemption in plan.preemptions:
            self._write_new_blocks(preemption.request_id)
        for start in plan.starts:
            self._request_in[start.slot] = start.request_id
        for chunk in plan.prefills:  # the chunks of a resumed request fill blocks with what it generated before
            self._write_new_blocks(self._request_in[chunk.slot])
        for ended in step.ended or ():
            self._end_request(ended.request_id)

    def _end_request(self, request_id: int) -> None:
        self._write_new_blocks(request_id)
        self._requests.pop(request_id, None)
        self._num_blocks.pop(request_id, None)

    def _write_new_blocks(self, request_id: int) -> None:
        request = self._requests.get(request_id)
        runs = self._new_blocks(request) if request is not None else []
        if runs:
            self._write(BlocksFilled(request_id, runs))

    def _new_blocks(self, request: Request) -> BlockRuns:
        """Return the numbers of the request's blocks that are not written yet."""
        first = self._num_blocks.get(request.request_id, 0)
        self._num_blocks[request.request_id] = len(request.block_hashes)
        return self._contents.runs(request.block_hashes[first:])

    def _anonymous(self, scheduling: Scheduling) -> Scheduling:
        name = scheduling.tenant.encode("utf-8", "surrogatepass")
        pseudonym = blake2b(name, digest_size=8, key=self._tenant_key).hexdigest() if name else ""
        return replace(scheduling, tenant=pseudonym, cache_salt="")

    def _write(self, line: Input | Step) -> None:
        if self._sink is None:
            return
        self._write_repeated()
        self._write_line(line)
        if len(self._lines) >= FLUSH_BYTES:
            self._put(self._compressed())

    def _write_repeated(self) -> None:
        if self._repeated:
            self._write_line(Repeated(self._repeated))
            self._repeated.clear()

    def _write_line(self, line: Header | Line) -> None:
        self._encoder.encode_into(line, self._lines, -1)
        self._lines += b"\n"

    def _compressed(self) -> bytes:
        compressed = self._compressor.compress(self._lines)
        self._lines.clear()
        return compressed

    def _put(self, data: bytes) -> None:
        if self._sink is None:
            return
        try:
            self._sink.write(data)
            self._sink.flush()
        except OSError as error:
            log.warning("the recording cannot be written and ends here: %s", error.strerror or error)
            self._end()
        else:
            self._num_bytes += len(data)

    def _end(self) -> None:
        sink, self._sink = self._sink, None
        self._requests.clear()
        self._num_blocks.clear()
        if sink is not None:
            with suppress(OSError):  # Bytes that a full disk refused are refused again.
                sink.close()


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
