"""Sums of small tensors over the GPUs of a machine in one kernel: each reads what all others have in their memory
(torch's symmetric memory). NCCL's ring or tree takes several exchanges one after another, which is most of what a sum
of a decode step takes."""

from __future__ import annotations

import torch
import torch.distributed as dist

_MOST_BYTES = {2: 512 << 10, 4: 512 << 10, 8: 256 << 10}
"""Maximum bytes of a tensor, by the number of GPUs; torch has the kernel for these numbers. Each GPU reads all whole
tensors, so from about this size on bandwidth counts more than latency. These are the limits of vLLM's own kernel of
this kind between four and eight GPUs (csrc/custom_all_reduce.cuh)."""


class OneShotSum:
    """A sum takes the ranks in their order, element by element, whatever the tensor's shape: it is the same bits as
    adding the ranks' tensors one after another. It can be part of a CUDA graph.

    Each rank asks `why_not` and makes its own. Once all of them have one, all `meet`.

    Raises:
        RuntimeError: there is no memory that could be shared.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        import torch.distributed._symmetric_memory as symmetric_memory  # not before it is needed

        self._meet = symmetric_memory.rendezvous
        self._most_bytes = _MOST_BYTES[size]
        world = dist.group.WORLD
        assert world is not None, "the process group comes first"
        self._group = world.group_name
        self._buffer = symmetric_memory.empty(self._most_bytes, dtype=torch.uint8, device=device)

    def meet(self) -> None:
        """Exchange the memory with all other ranks, which this waits for.

        Raises:
            RuntimeError: theirs cannot be read here.
        """
        self._meet(self._buffer, self._group)

    @staticmethod
    def why_not(size: int, device: torch.device) -> str | None:
        """Return why a rank cannot take part, as the end of "... cannot be used: "; None: it can."""
        if device.type != "cuda":
            return "it needs GPUs"
        if size not in _MOST_BYTES:
            return f"it is for {', '.join(map(str, _MOST_BYTES))} GPUs, not {size}"
        peers = [peer for peer in range(size) if peer != device.index]
        if not all(torch.cuda.can_device_access_peer(device.index, peer) for peer in peers):
            return "not every GPU can read every other's memory"
        return None

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether the kernel sums tensors of this size. Its loads and stores have 16 bytes."""
        return 0 < x.nbytes <= self._most_bytes and x.nbytes % 16 == 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks; x stays as it is."""
        x = x.contiguous()
        shared = self._buffer[: x.nbytes].view(x.dtype).view(x.shape)
        total: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(shared, x, "sum", self._group)
        return total
