"""Transfer of a step's results to the host: asynchronous copies into pinned memory, and one wait for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch


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
