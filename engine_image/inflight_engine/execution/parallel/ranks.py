"""Rank 0 of tensor parallelism: the engine process's own runner, and the processes of the other ranks.

Every step plan goes to all ranks before any computes it, and all run the same code over it; they meet in the sums of
the layers. Ranks that compute different things deadlock. So a failure on one rank ends all of them: the
engine process exits when a worker ends or when one of its own steps fails, and workers exit when it does, whatever
the cause.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from inflight_engine.execution.build import build_runner
from inflight_engine.execution.device import choose_device
from inflight_engine.execution.load import load_config, refuse_options
from inflight_engine.execution.memory.resources import choose_num_threads, read_resources
from inflight_engine.execution.parallel.plan_frames import PlanEncoder
from inflight_engine.execution.parallel.process_group import join
from inflight_engine.execution.runner import Runner
from inflight_engine.grammars.compiled import Grammars
from inflight_engine.models.checkpoints.source import resolve_configured
from inflight_engine.output import SharedBlocks, StepOutput
from inflight_engine.scheduling.plan import StepPlan
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

_LOADING_GRACE = 5.0
"""Seconds between the end of a worker while loading and that of this process: what failed there often fails here too,
and then this process can say why itself."""


class TensorParallelRunner:
    """A `StepExecutor` over `tensor_parallel_size` processes, one for each GPU.

    On CPU the processes share the machine's cores among them.

    Raises:
        ValueError: the model, the device or an option does not allow it; the message says which.
    """

    def __init__(self, config: EngineConfig, grammars: Grammars | None) -> None:
        size = config.tensor_parallel_size
        device = choose_device(config.device)
        _refuse(config, device)
        if device.type == "cpu":
            num_threads = choose_num_threads(config.num_threads, read_resources().cpus)
            config = replace(config, device="cpu", num_threads=max(1, num_threads // size))
        self._loaded = False
        self._folder = tempfile.TemporaryDirectory(prefix="inflight-ranks-")
        meeting_place = Path(self._folder.name) / "store"
        self._workers = [_Worker(rank, meeting_place, config) for rank in range(1, size)]
        for worker in self._workers:
            threading.Thread(target=self._watch, args=[worker], daemon=True).start()
        self._runner = build_runner(config, join(config, 0, meeting_place), grammars)
        self._loaded = True
        self.lookahead = self._runner.lookahead
        self.info = self._runner.info
        self.host_cache = self._runner.host_cache
        self._encoder = PlanEncoder()

    def launch(self, plan: StepPlan) -> None:
        try:
            frame = self._encoder.encode(plan)
            for worker in self._workers:
                worker.plans.send_bytes(frame)
            self._runner.launch(plan)
        except Exception:
            _leave()

    def collect(self) -> StepOutput:
        try:
            return self._runner.collect()
        except Exception:
            _leave()

    def share_blocks(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> SharedBlocks:
        raise AssertionError("workers keep their parts of the blocks")

    def free_cache(self) -> None:
        raise AssertionError("workers keep their parts of the cache")

    def _watch(self, worker: _Worker) -> None:
        status = worker.process.wait()
        log.error("rank %d ended with status %d; the engine cannot go on without it", worker.rank, status)
        if not self._loaded:
            time.sleep(_LOADING_GRACE)
        self._folder.cleanup()
        os._exit(1)  # The main thread may wait for the worker in a sum that never comes.


class _Worker:
    """The process of one rank. Its ends of the connections close when this process ends."""

    def __init__(self, rank: int, meeting_place: Path, config: EngineConfig) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self.plans = Connection(ours.detach(), readable=False)
        command = [sys.executable, "-m", "inflight_engine.execution.parallel.worker"]
        arguments = [str(rank), str(theirs.fileno()), str(lifeline), str(meeting_place)]
        with theirs:
            self.process = subprocess.Popen(
                [*command, *arguments, msgspec.json.encode(config).decode()],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
            )
        os.close(lifeline)


def make_runner(config: EngineConfig, grammars: Grammars | None = None) -> Runner | TensorParallelRunner:
    """Make the step executor of a configuration. `grammars`: as for `build_runner`.

    Raises:
        ValueError: as `build_runner` and `TensorParallelRunner`.
    """
    if config.tensor_parallel_size < 1:
        raise ValueError(f"tensor_parallel_size must be at least 1, not {config.tensor_parallel_size}")
    if config.tensor_parallel_size == 1:
        return build_runner(config, grammars=grammars)
    return TensorParallelRunner(config, grammars)


def _refuse(config: EngineConfig, device: torch.device) -> None:
    size = config.tensor_parallel_size
    if config.disk_space:
        raise ValueError("disk_space is not supported with tensor_parallel_size above 1; set it to 0")
    if config.sleep_after is not None:
        raise ValueError("sleep_after is not supported with tensor_parallel_size above 1; leave it out")
    if device.type == "cuda" and torch.cuda.device_count() < size:
        raise ValueError(f"tensor_parallel_size {size} needs as many GPUs, but there are {torch.cuda.device_count()}")
    model_config = load_config(resolve_configured(config))
    refuse_options(config, model_config)
    model_config.shape.for_rank(size)


def _leave() -> NoReturn:
    log.exception("a step failed; with other ranks at work, the engine cannot go on")
    raise SystemExit(1)  # no Exception: the engine survives those
