"""Peers on this machine, by torch.distributed."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from inflight_engine.execution.device import choose_device
from inflight_engine.execution.parallel.one_shot import OneShotSum
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

_FOREVER = timedelta(days=365)
"""Timeout of a step: hours may pass between two, and a dead peer shows by its closed connection."""


class TorchDistributed:
    """Implements `Parallel`: NCCL between GPUs, small sums in one kernel where they can be, gloo between CPU processes
    and for what the host has to know.

    Args:
        meeting_place: a file that all ranks can open, not there yet; it stays as long as they do.
        device: this rank's.
        batch_invariant: sums of more than two ranks are taken in their order. NCCL parts a tensor into pieces by its
            size and begins each piece at another rank, so a row's sum would depend on how many rows there are.
    """

    def __init__(
        self, rank: int, size: int, meeting_place: Path, device: torch.device, *, batch_invariant: bool
    ) -> None:
        self.rank, self.size = rank, size
        self._in_order = batch_invariant and size > 2
        if "lo" in (name for _, name in socket.if_nameindex()):
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")  # else it listens on a network that others see
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=meeting_place.as_uri(),
            rank=rank,
            world_size=size,
            timeout=_FOREVER,
            device_id=device if on_gpu else None,
        )
        self._one_shot = self._make_one_shot(device) if on_gpu and size > 1 else None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self._one_shot is not None and self._one_shot.takes(x):
            return self._one_shot(x)
        if self._in_order:
            first, *others = self._everyones(x).unbind()
            return sum(others, first)
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._everyones(x).movedim(0, -2).flatten(-2)

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        dist.broadcast(x, 0)
        return x

    def minimum(self, value: int) -> int:
        smallest = torch.tensor(value)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def _make_one_shot(self, device: torch.device) -> OneShotSum | None:
        """Make the kernel's sum; None: a rank cannot use it, so no rank does. The ranks agree after each stage: a rank
        that continued alone would deadlock."""
        made: list[OneShotSum] = []
        stages: tuple[Callable[[], str | None], ...] = (
            lambda: OneShotSum.why_not(self.size, device),
            lambda: made.append(OneShotSum(self.size, device)),
            lambda: made[0].meet(),
        )
        for stage in stages:
            try:
                reason = stage()
            except RuntimeError as error:
                reason = str(error)
            if reason is not None:
                log.info("sums of decode steps by symmetric memory cannot be used: %s", reason)
            if not self.minimum(int(reason is None)):
                return None
        return made[0]

    def _everyones(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the tensors of all ranks: [size, *shape of x]."""
        below_each_other = x.new_empty(self.size * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(below_each_other, x.contiguous())
        return below_each_other.view(self.size, *x.shape)


def join(config: EngineConfig, rank: int, meeting_place: Path) -> TorchDistributed:
    """Take a rank's device, and wait for the others."""
    device = choose_device(config.device)
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    return TorchDistributed(
        rank, config.tensor_parallel_size, meeting_place, device, batch_invariant=config.batch_invariant
    )
