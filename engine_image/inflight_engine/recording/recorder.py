"""Writes inputs and decisions of the scheduler while the engine runs."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from typing import BinaryIO

import msgspec

from inflight_cost.model import CostModel
from inflight_engine.cache.swap import SwapRates
from inflight_engine.observer import EngineObserver
from inflight_engine.recording.content import ContentIds
from inflight_engine.recording.decisions import Decisions, ended_lines
from inflight_engine.recording.lines import (
    FORMAT_VERSION,
    MAX_CONTENT_ID,
    Added,
    BlocksFilled,
    Cancelled,
    ChunksFailed,
    Event,
    Header,
    LimitsChanged,
    PrefillCostChanged,
    RatesChanged,
    Repeated,
    TimePassed,
    WeightsChanged,
)
from inflight_engine.request import FinishReason, Request
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_settings.limits import LimitsInForce

log = logging.getLogger(__name__)

MAX_BYTES = 2**30
FLUSH_SECONDS = 1.0
"""Of steps: what a killed process loses."""
FLUSH_BYTES = 64 * 1024
"""Of lines, before compression."""

_GZIP = 16 + zlib.MAX_WBITS


class Recorder(EngineObserver):
    """An observer that writes what it hears.

    A recording never harms the engine. When it reaches `max_bytes`, or `sink` cannot be written (a full disk), it ends
    with one warning in the log, and what is in the file by then stays readable.

    Args:
        sink: where the gzip stream goes; closed by `close`, or when the recording ends by itself.
        is_cached: whether a block with this hash can be found in the prefix cache now. By it the recorder forgets
            hashes that nothing can meet again, so its memory stays bounded by the cache and the requests at hand.
        max_bytes: compressed; passed by less than one flush.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        sink: BinaryIO,
        *,
        is_cached: Callable[[bytes], bool],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._sink: BinaryIO | None = sink
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._compressor = zlib.compressobj(wbits=_GZIP)
        self._encoder = msgspec.json.Encoder()
        self._lines = bytearray()
        self._decisions = Decisions(config.capacity.max_num_seqs)
        self._ahead = False
        """Of the last line of a step."""
        self._repeated: list[float] = []
        self._unflushed_seconds = 0.0
        self._requests: dict[int, Request] = {}
        self._request_in: dict[int, int] = {}
        self._contents = ContentIds(self._requests, is_cached)
        self._tenant_key = os.urandom(16)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._write_line(Header(FORMAT_VERSION, version("inflight"), started, config))
        self.flush()

    @classmethod
    def to_file(cls, path: str, config: SchedulerConfig, is_cached: Callable[[bytes], bool]) -> Recorder:
        """Record to a new file; one that is there is overwritten.

        Raises:
            OSError: it cannot be opened; the message says why.
        """
        try:
            return cls(config, open(path, "wb"), is_cached=is_cached)
        except OSError as error:
            raise OSError(f"cannot record to {path}: {error.strerror}") from error

    def added(self, request: Request) -> None:
        if self._sink is None:
            return
        self._requests[request.request_id] = request
        self._write(
            Added(
                request.request_id,
                request.arrival_time,
                request.num_prompt_tokens,
                request.sampling.max_tokens,
                request.scheduling.service_class,
                self._pseudonym(request.scheduling.tenant),
                request.scheduling.priority,
                request.scheduling.predicted_tokens,
                self._contents.new_runs(request),
                len(request.output_token_ids),
            )
        )

    def cancelled(self, request_id: int, reason: FinishReason) -> None:
        if self._sink is None:
            return
        self._write(Cancelled(request_id, reason))
        self._write_filled_blocks(request_id)
        self._forget(request_id)

    def limits(self, limits: LimitsInForce) -> None:
        if self._sink is not None:
            pair = limits.limits
            self._write(LimitsChanged(pair.max_num_seqs, pair.max_num_batched_tokens, limits.revision))

    def weights(self, weights: dict[str, float]) -> None:
        if self._sink is not None:
            self._write(WeightsChanged(weights))

    def rates(self, rates: SwapRates | None) -> None:
        if self._sink is not None:
            self._write(RatesChanged(None if rates is None else (rates.prefill, rates.copy)))

    def prefill_cost(self, cost: CostModel | None) -> None:
        if self._sink is not None:
            self._write(PrefillCostChanged(cost))

    def time_passed(self, step: int, now: float) -> None:
        if self._sink is not None:
            self._write(TimePassed(step, now))

    def stepped(self, plan: StepPlan, ended: list[Request], seconds: float, *, ahead: bool = False) -> None:
        # One number is all that a steady step costs.
        if not ended and ahead is self._ahead and self._decisions.repeats(plan):
            self._repeated.append(seconds)
        elif self._sink is None:
            return
        else:
            self._write_step(plan, ended, seconds, ahead=ahead)
        self._unflushed_seconds += seconds
        if self._unflushed_seconds >= FLUSH_SECONDS:
            self.flush()

    def chunks_failed(self, slots: Sequence[int]) -> None:
        if self._sink is not None:
            self._write(ChunksFailed(list(slots)))

    def failed(self, plan: StepPlan, seconds: float, *, ahead: bool = False) -> None:
        if self._sink is not None:
            self._write_step(plan, None, seconds, ahead=ahead)

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
        elif self._contents.next_id > MAX_CONTENT_ID:
            log.warning("the recording has met %d different blocks, its most, and ends here", MAX_CONTENT_ID)
            self.close()

    def close(self) -> None:
        """Write the rest and close the file. What comes later is not recorded."""
        if self._sink is None:
            return
        self._write_repeated()
        self._put(self._compressed() + self._compressor.flush(zlib.Z_FINISH))
        self._end()

    def _write_step(self, plan: StepPlan, ended: list[Request] | None, seconds: float, *, ahead: bool) -> None:
        step = self._decisions.of(plan, _micros(seconds), None if ended is None else ended_lines(ended), ahead=ahead)
        self._ahead = ahead
        self._write(step)
        for preemption in step.preemptions:
            self._write_filled_blocks(preemption.request_id)
        for start in step.starts:
            self._request_in[start.slot] = start.request_id
        # A request that resumed has filled blocks with what it generated before.
        for chunk in step.chunks:
            self._write_filled_blocks(self._request_in[chunk.slot])
        for request in step.ended or ():
            self._write_filled_blocks(request.request_id)
            self._forget(request.request_id)

    def _write_filled_blocks(self, request_id: int) -> None:
        request = self._requests.get(request_id)
        runs = self._contents.new_runs(request) if request is not None else []
        if runs:
            self._write(BlocksFilled(request_id, runs))

    def _forget(self, request_id: int) -> None:
        self._requests.pop(request_id, None)
        self._contents.ended(request_id)

    def _write(self, event: Event) -> None:
        self._write_repeated()
        self._write_line(event)
        if len(self._lines) >= FLUSH_BYTES:
            self._put(self._compressed())

    def _write_repeated(self) -> None:
        if self._repeated:
            self._write_line(Repeated([_micros(seconds) for seconds in self._repeated]))
            self._repeated.clear()

    def _write_line(self, line: Header | Event) -> None:
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
        # No step repeats what is not followed any more, so `stepped` counts none.
        self._decisions.reset()
        if sink is not None:
            with suppress(OSError):  # Bytes that a full disk refused are refused again.
                sink.close()

    def _pseudonym(self, tenant: str) -> str:
        name = tenant.encode("utf-8", "surrogatepass")
        return blake2b(name, digest_size=8, key=self._tenant_key).hexdigest() if tenant else ""


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
