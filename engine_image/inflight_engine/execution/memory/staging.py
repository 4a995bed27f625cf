"""Transfer of a step's small arrays to the device, packed into pinned memory, in one copy that the host need not await;
and of its results to the host: asynchronous copies into pinned memory, and one wait for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Alignment of each array in bytes, for vector loads and for addresses that a kernel was compiled to expect."""


class Staging:
    """Brings the arrays of a step to a device.

    The arrays lie one after another in the order given. So those at the front whose lengths are the same in two calls
    are at the same addresses in both, as a CUDA graph needs them to be.

    Two pinned buffers take turns, so that a step is staged while the copy of the one before it may still wait for its
    turn on the device. There is one device buffer: a stream runs in order, so whatever reads it has done so before the
    next step's copy is made.

    Args:
        capacity: bytes of all arrays of one call, each rounded up to 16.
        copies: False: the tensors returned share the arrays' memory; only on CPU.
    """

    def __init__(self, capacity: int, device: torch.device, *, copies: bool) -> None:
        self._copies = copies
        self._turn = 0
        if not copies:
            return
        on_gpu = device.type == "cuda"
        self._capacity = capacity
        self._hosts = [torch.empty(capacity, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        self._host_arrays = [host.numpy() for host in self._hosts]
        self._sent = [_event() if on_gpu else None for _ in range(2)]
        self._device_buffer = torch.empty(capacity, dtype=torch.uint8, device=device)

    def send(self, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
        """Tensors with the arrays' contents, shapes and dtypes, on the device; valid until the next call.

        Raises:
            ValueError: they are more than the capacity.
        """
        if not self._copies:
            return [_shared(array) for array in arrays]
        ends = _ends(arrays)
        if ends[-1] > self._capacity:
            raise ValueError(f"{ends[-1]} bytes to stage, but there is room for {self._capacity}")
        self._turn = turn = 1 - self._turn
        sent = self._sent[turn]
        if sent is not None:
            sent.synchronize()  # has ended long ago, unless the step before the last was not collected
        starts = [0, *ends[:-1]]
        for array, start in zip(arrays, starts, strict=True):
            self._host_arrays[turn][start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        self._device_buffer[: ends[-1]].copy_(self._hosts[turn][: ends[-1]], non_blocking=True)
        if sent is not None:
            sent.record()
        return [
            self._device_buffer[start : start + array.nbytes].view(_dtype(array)).view(array.shape)
            for array, start in zip(arrays, starts, strict=True)
        ]


class Fetch:
    """Copies of tensors to the host, begun at once, in the order of the device's stream.

    Args:
        tensors: tensors to copy; if empty, `wait` waits for the copies begun before.
        on_gpu: where they are.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], on_gpu: bool) -> None:
        self._done: torch.cuda.Event | None = None
        self._on_host: list[npt.NDArray[Any]]
        if not on_gpu:
            self._on_host = [tensor.numpy().copy() for tensor in tensors]
            return
        self._on_host = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True).numpy()
            for tensor in tensors
        ]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record()

    def wait(self) -> list[npt.NDArray[Any]]:
        """Return the tensors' contents, once the device has come this far; waits without holding Python's lock."""
        if self._done is not None:
            self._done.synchronize()
        return self._on_host


def staged_bytes(*sizes: int) -> int:
    """Return the capacity for arrays of these sizes in bytes."""
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)


def step_bytes(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Return the capacity for the largest step: four numbers a token and two a sequence, 8 bytes each."""
    seqs, tokens = 8 * max_num_seqs, 8 * max(max_num_batched_tokens, max_num_seqs)
    return staged_bytes(tokens, tokens, tokens, tokens, seqs, seqs)


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array of any size to a device, without waiting for the device. For arrays that few steps need: torch
    finds pinned memory for the copy and keeps it until the copy is made."""
    if device.type == "cpu":
        return _shared(array)
    return _shared(array).pin_memory().to(device, non_blocking=True)


def _ends(arrays: Sequence[npt.NDArray[Any]]) -> list[int]:
    ends, end = [], 0
    for array in arrays:
        end += staged_bytes(array.nbytes)
        ends.append(end)
    return ends


def _shared(array: npt.NDArray[Any]) -> torch.Tensor:
    # torch has no read-only tensors and warns.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _dtype(array: npt.NDArray[Any]) -> torch.dtype:
    return _TORCH_DTYPES[array.dtype]


_TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")
}
