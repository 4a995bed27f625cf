"""Peers on this machine, by torch.distributed."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_FOREVER = timedelta(days=365)
"""Between two steps there may be hours; that a peer is dead is noticed by its closed connection or its end."""


class TorchDistributed:
    """Implements `Parallel`: NCCL between GPUs, gloo between CPU processes and for what the host has to know.

    Args:
        meeting_place: a file that all ranks can open, not there yet; needed only until all of them are here.
        device: this rank's.
    """

    def __init__(self, rank: int, size: int, meeting_place: Path, device: torch.device) -> None:
        self.rank, self.size = rank, size
        if "lo" in (name for _, name in socket.if_nameindex()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it listens on a network that others see
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=meeting_place.as_uri(),
            rank=rank,
            world_size=size,
            timeout=_FOREVER,
            device_id=device if on_gpu else None,
        )

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        gathered = x.new_empty(self.size * len(x), *x.shape[1:])  # the ranks' tensors below each other
        dist.all_gather_into_tensor(gathered, x.contiguous())
        return gathered.view(self.size, *x.shape).movedim(0, -2).flatten(-2)

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        dist.broadcast(x, 0)
        return x

    def minimum(self, value: int) -> int:
        smallest = torch.tensor(value)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)
