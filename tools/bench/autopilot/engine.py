"""The engine under test, and its limits, set as the operator sets them: signed calls to its admin API."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from inflight_base.manifest.engines import VLLM, EngineType
from inflight_operator.apply.engines import EngineClient
from inflight_operator.observe.metrics import Sample, parse_metrics
from inflight_operator.observe.pods import PodView
from inflight_settings.limits import Limits, LimitsInForce
from tools.bench.vllm_server import served_vllm
from tools.measure.processes import touch_memory
from tools.measure.served import served_engine

UID = "bench-autopilot"
TOKEN = "bench-autopilot-token"
IMAGE = "engine:bench"
_IDLE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine, as a pod of one container."""

    url: str
    pod: PodView


@contextmanager
def started(
    kind: str, log: Path, capacity: Limits, ttft: float, threads: int | None, say: Callable[[str], None]
) -> Iterator[Engine]:
    """The built-in model while the block runs, started as the operator would for a service with a TTFT target: with
    8-bit weights by our engine, in bfloat16 by vLLM with the plugin. Its memory is resident, as that of an engine which
    has served before.

    Args:
        kind: `inflight` or `vllm`.

    Raises:
        RuntimeError: it did not become ready.
    """
    flags = [
        f"--max-num-seqs={capacity.max_num_seqs}",
        f"--max-num-batched-tokens={capacity.max_num_batched_tokens}",
    ]
    environment = {"INFLIGHT_ADMIN_TOKEN": TOKEN, "INFLIGHT_POD_UID": UID}
    if kind == VLLM:
        flags.append("--scheduling-policy=priority")
        environment["INFLIGHT_TTFT_TARGET"] = str(ttft)
        with served_vllm(log, *flags, say=say, environment=environment, threads=threads) as server:
            touch_memory(os.getpid())
            yield Engine(server.url, _pod(server.admin_port, EngineType(VLLM, plugin=True)))
        return
    flags += ["--quantization=int8", f"--ttft-target={ttft}", "--max-queued-requests=100000"]
    if threads is not None:
        flags.append(f"--num-threads={threads}")
    with served_engine(log, *flags, environment=environment) as url:
        touch_memory(os.getpid())
        yield Engine(url, _pod(urlsplit(url).port or 0, EngineType()))


def _pod(port: int, engine: EngineType) -> PodView:
    now = time.time()
    return PodView(
        name="engine", uid=UID, ip="127.0.0.1", node="this", phase="Running", ready=True, deleting=False, restarts=0,
        image=IMAGE, waiting_reason="", waiting_message="", last_reason="", last_message="", exit_code=None,
        unschedulable="", failure="", running_since=now - 5, last_run=None, ready_since=now, unready_since=None,
        metrics_port=port, admin_port=port, deletion_cost=0, created=now - 6, engine=engine,
    )  # fmt: skip


class Admin:
    """Sets and reads the limits of one engine."""

    def __init__(self, http: aiohttp.ClientSession, engine: Engine) -> None:
        self._http = http
        self._client = EngineClient(http)
        self._engine = engine
        self._revision = 0

    async def set_limits(self, limits: Limits, revision: int | None = None) -> LimitsInForce:
        """Returns once they are in force, with a revision of their own where none is given.

        Raises:
            inflight_operator.apply.engines.EngineError: the engine did not take them.
        """
        self._revision = self._revision + 1 if revision is None else revision
        wanted = LimitsInForce(limits, self._revision)
        await self._client.set_limits(self._engine.pod, TOKEN, wanted)
        return wanted

    async def sample(self) -> Sample:
        """Reads the engine's metrics page."""
        async with self._http.get(f"{self._engine.url}/metrics") as response:
            return parse_metrics(await response.text(), time.monotonic())

    async def idle(self) -> None:
        """Returns once no request runs or waits.

        Raises:
            RuntimeError: it does not come to that.
        """
        deadline = time.monotonic() + _IDLE_SECONDS
        while time.monotonic() < deadline:
            sample = await self.sample()
            if not sample.running and not sample.waiting:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the engine still has requests {_IDLE_SECONDS} s after the last one was given up")
