"""Usage of tenants as JSON lines on a volume, and the counters of `usage.py` as they were before a restart.

A request's line is written and stored by the volume (fdatasync) within a second of its end: a pod that is killed, or a
node that fails, loses the lines of at most the last second. While the volume takes no lines, requests go on: lines wait
in memory, at most `MAX_WAITING_BYTES`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.tenants.usage import ANONYMOUS, Usage
from inflight_gateway.tenants.usage_files import Line, Total, UsageFiles
from inflight_gateway.types import Finished

_log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Seconds between two writes."""

MAX_WAITING_BYTES = 8 * 2**20
"""Most bytes of lines that wait for the volume: some 30,000 lines. Beyond it the oldest ones are lost."""

VOLUME_S = 10.0
"""Longest wait for the volume at the start and at the end."""

_encoder = msgspec.json.Encoder()


class UsageLog(Collector):
    """The log of one gateway pod; register it at the registry of the gateway's metrics.

    Args:
        volume: folder for the log.
        usage: counters to resume.
        model: returns the model name of a service.
        wall: Unix time.
    """

    def __init__(
        self,
        volume: Path,
        usage: Usage,
        model: Callable[[ServiceKey], str],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._volume = volume
        self._usage = usage
        self._model = model
        self._wall = wall
        self._files: UsageFiles | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._failing = False
        self._checkpoint_due = False
        self._forgotten = 0
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, finished: Finished, prompt_tokens: int) -> None:
        """Adds a request that ended and was counted. Args: prompt_tokens: as counted."""
        service = finished.service
        line = Line(
            round(self._wall(), 3),
            service.namespace,
            service.name,
            self._model(service),
            finished.external_id,
            finished.status,
            finished.tenant,
            finished.key_id,
            prompt_tokens,
            finished.cached_tokens,
            finished.completion_tokens,
            finished.continuations,
        )
        self._wait([_encoder.encode(line) + b"\n"])

    async def start(self) -> None:
        """Resumes the counters, and begins to write. Without the volume, the counters begin at 0."""
        for total in await self._open():
            self._usage.resume(total)
        self._task = asyncio.create_task(self._run(), name="usage log")

    async def close(self) -> None:
        """Writes the lines that wait."""
        self._ending.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=VOLUME_S)

    async def _run(self) -> None:
        ending = False
        while not ending:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._ending.wait()
            ending = self._ending.is_set()
            if self._files is None:
                # The counters have gone on without those of the volume: to add them now would count requests again.
                await self._open()
                self._checkpoint_due = True
            if self._files is not None:
                await self._flush(self._files)
        if self._files is not None:
            self._files.close()

    async def _open(self) -> list[Total]:
        files = UsageFiles(self._volume)
        try:
            async with asyncio.timeout(VOLUME_S):
                totals = await asyncio.to_thread(lambda: _summed(*files.open()))
        except (OSError, TimeoutError) as error:
            self._failed(error)
            return []
        self._files = files
        return totals

    async def _flush(self, files: UsageFiles) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        data = b"".join(waiting)
        if self._usage.forgotten != self._forgotten or files.begins_segment(len(data)):
            # Also where a service was deleted: its counters would come back from lines before that.
            self._forgotten, self._checkpoint_due = self._usage.forgotten, True
        totals = self._usage.totals() if self._checkpoint_due else None
        try:
            if data:
                await asyncio.to_thread(files.append, data)
                waiting.clear()
            if totals is not None:
                await asyncio.to_thread(files.checkpoint, totals)
                self._checkpoint_due = False
        except OSError as error:
            later, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
            self._wait((*waiting, *later))
            self._failed(error)
        else:
            if self._failing:
                _log.info("usage is written to %s again; %d lines were lost", self._volume, self._lost)
            self._failing = False

    def _wait(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._lost += 1

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            said = str(error) or type(error).__name__
            _log.error("usage cannot be written to %s; requests go on: %s", self._volume, said)
        self._failing = True

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        yield CounterMetricFamily(
            "inflight_gateway_usage_lines_lost",
            "Lines of the usage log that were not written because its volume took none for too long.",
            value=self._lost,
        )
        yield GaugeMetricFamily(
            "inflight_gateway_usage_log_failing",
            "1 while the volume of the usage log takes no lines; the log says why.",
            value=float(self._failing),
        )


def _summed(totals: Iterable[Total], lines: Iterable[Line]) -> list[Total]:
    """Returns the counters of a checkpoint with the lines after it."""
    sums = {(one.namespace, one.service, one.label): list(one.counters) for one in totals}
    for line in lines:
        counters = sums.setdefault((line.namespace, line.service, line.tenant or ANONYMOUS), [0, 0, 0, 0])
        used = (1, line.prompt_tokens, line.cached_tokens, line.completion_tokens)
        for place, number in enumerate(used):
            counters[place] += number
    return [Total(*names, *counters) for names, counters in sums.items()]
