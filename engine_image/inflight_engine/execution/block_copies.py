"""Copies of whole KV blocks between a device's cache and host memory, one to one, in the order of the calls and of what
the device computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload

_SEED = 29
"""Seed of the odd numbers that words are multiplied with, and checksum of zeros."""

_PIECE_BYTES = 16 << 20
"""Bytes of one transfer: enough for the full speed of the bus."""


class Checksums:
    """Checksums of host blocks: sums of their words, each times an odd number of its own, so that any change of one
    word changes the sum. That of zeros is not 0, as which a block counts that was never stored.

    Args:
        row: a block, [words], of integers.
    """

    def __init__(self, num_blocks: int, row: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        odd = torch.randint(-(2**62), 2**62, row.shape, generator=generator) * 2 + 1
        self._weights = odd.to(row.device)
        self._sums = torch.zeros(num_blocks, dtype=torch.int64, device=row.device)

    def note(
        self, host_block_ids: torch.Tensor | slice, rows: torch.Tensor, products: torch.Tensor | None = None
    ) -> None:
        """Take the checksums of what is stored. `products`: int64 of the shape of `rows`, to be overwritten."""
        self._sums[host_block_ids] = self._of(rows, products)

    def of(self, host_block_ids: Sequence[int]) -> list[int]:
        """Return the checksums of host blocks."""
        return self._sums.cpu()[list(host_block_ids)].tolist()

    def set(self, host_block_ids: Sequence[int], checksums: Sequence[int]) -> None:
        """Take the checksums of what was put into host blocks."""
        places, values = np.array(host_block_ids, np.int64), np.array(checksums, np.int64)
        self._sums[upload(places, self._sums.device)] = upload(values, self._sums.device)

    def num_damaged(
        self, host_block_ids: torch.Tensor | slice, rows: torch.Tensor, products: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return how many rows are not what was stored: int64 [], where the rows are."""
        return (self._sums[host_block_ids] != self._of(rows, products)).sum()

    def _of(self, rows: torch.Tensor, products: torch.Tensor | None) -> torch.Tensor:
        if rows.is_cpu:  # in one thread, as the copies
            return torch.from_numpy(rows.numpy() @ self._weights.numpy()) + _SEED
        return torch.mul(rows, self._weights, out=products).sum(1) + _SEED


class DirectCopies:
    """Copies block by block, for a cache that is in host memory itself, in one thread: on busy cores, torch's threads
    wait for each other longer than a block takes.

    Args:
        blocks: [num_blocks, ...], a view of the cache.
        host: uint8 [num_host_blocks, bytes of a block].
    """

    def __init__(self, blocks: torch.Tensor, host: torch.Tensor) -> None:
        words = _words(blocks)
        self._blocks = words.numpy()
        self._host = host.view(words.dtype).view(len(host), *words.shape[1:]).numpy()
        self._rows = _words(host)
        self.checksums = Checksums(len(host), self._rows[0]) if len(host) else None

    def copy_out(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> None:
        """Copy blocks of the cache to host memory."""
        for block_id, host_block_id in zip(block_ids, host_block_ids, strict=True):
            np.copyto(self._host[host_block_id], self._blocks[block_id])
            if self.checksums is not None:
                place = slice(host_block_id, host_block_id + 1)
                self.checksums.note(place, self._rows[place])

    def copy_in(self, host_block_ids: Sequence[int], block_ids: Sequence[int]) -> torch.Tensor:
        """Copy blocks back to the cache; returns how many are not what was stored: int64 []."""
        num_damaged = torch.zeros((), dtype=torch.int64)
        for block_id, host_block_id in zip(block_ids, host_block_ids, strict=True):
            if self.checksums is not None:
                place = slice(host_block_id, host_block_id + 1)
                num_damaged += self.checksums.num_damaged(place, self._rows[place])
            np.copyto(self._blocks[block_id], self._host[host_block_id])
        return num_damaged

    def settle(self) -> None:
        """Do nothing: what was copied out is in host memory."""


class StagedCopies:
    """Copies in pieces, for a GPU: one kernel gathers or scatters a piece's blocks over all layers, and one transfer
    moves it for each run of neighbours in host memory. Transfers have a stream of their own: what goes out moves while
    the device computes, and what comes in begins to while it still computes the step before.

    Two buffers on the device take turns. A kernel or transfer waits until the one that last used its buffer is done.

    Args:
        blocks: as `DirectCopies`.
        host: as `DirectCopies`, pinned.
        piece_bytes: size of a buffer.
    """

    def __init__(self, blocks: torch.Tensor, host: torch.Tensor, piece_bytes: int = _PIECE_BYTES) -> None:
        self._blocks = _words(blocks)
        self._host = host.view(self._blocks.dtype).view(len(host), *self._blocks.shape[1:])
        self._piece = max(1, min(piece_bytes // host.shape[1], len(host)))
        device = blocks.device
        shape = (self._piece, *self._blocks.shape[1:])
        self._buffers = [torch.empty(shape, dtype=self._blocks.dtype, device=device) for _ in range(2)]
        self.checksums = Checksums(len(host), self._buffers[0][0].flatten())
        self._products = torch.empty(shape, dtype=torch.int64, device=device).flatten(1)
        self._streams = _Streams(device)
        self._turn = 0

    def copy_out(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> None:
        """Copy blocks of the cache to host memory."""
        for ids, host_ids in self._pieces(block_ids, host_block_ids):
            buffer = self._next_buffer()[: len(ids)]
            self._streams.compute_after_use(self._turn)
            torch.index_select(self._blocks, 0, ids, out=buffer)
            self.checksums.note(upload(host_ids, ids.device), buffer.flatten(1), self._products[: len(ids)])
            self._streams.transfers_after_compute()
            with self._streams.transfers():
                for first, end in runs(host_ids):
                    start = int(host_ids[first])
                    self._host[start : start + end - first].copy_(buffer[first:end], non_blocking=True)
                self._streams.used(self._turn)

    def copy_in(self, host_block_ids: Sequence[int], block_ids: Sequence[int]) -> torch.Tensor:
        """Copy blocks back to the cache; returns how many are not what was stored: int64 [], on the device."""
        num_damaged = torch.zeros((), dtype=torch.int64, device=self._blocks.device)
        for ids, host_ids in self._pieces(block_ids, host_block_ids):
            buffer = self._next_buffer()[: len(ids)]
            with self._streams.transfers():
                self._streams.transfers_after_use(self._turn)
                for first, end in runs(host_ids):
                    start = int(host_ids[first])
                    buffer[first:end].copy_(self._host[start : start + end - first], non_blocking=True)
            self._streams.compute_after_transfers()
            places, rows, products = upload(host_ids, ids.device), buffer.flatten(1), self._products[: len(ids)]
            num_damaged += self.checksums.num_damaged(places, rows, products)
            self._blocks.index_copy_(0, ids, buffer)
            self._streams.used(self._turn)
        return num_damaged

    def settle(self) -> None:
        """Wait until all that was copied out is in host memory; from any thread."""
        self._streams.settle()

    def _next_buffer(self) -> torch.Tensor:
        self._turn = 1 - self._turn
        return self._buffers[self._turn]

    def _pieces(
        self, block_ids: Sequence[int], host_block_ids: Sequence[int]
    ) -> Iterator[tuple[torch.Tensor, npt.NDArray[np.int64]]]:
        """Yield (block ids on the device, host block ids), in ascending order of the host block ids."""
        if len(block_ids) != len(host_block_ids):
            raise ValueError(f"{len(block_ids)} blocks cannot be copied one to one to {len(host_block_ids)}")
        host_ids = np.array(host_block_ids, np.int64)
        order = np.argsort(host_ids)
        host_ids, ids = host_ids[order], np.array(block_ids, np.int64)[order]
        for first in range(0, len(ids), self._piece):
            piece = slice(first, first + self._piece)
            yield upload(ids[piece], self._blocks.device), host_ids[piece]


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as integers, of 8 bytes where its last dimension divides into such: one is moved as fast as a
    byte."""
    wide = tensor.view(torch.uint8)
    return wide.view(torch.int64) if wide.shape[-1] % 8 == 0 else wide


def runs(ids: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (first index, end) of each run of ascending neighbours, such as 4, 5, 6."""
    if not len(ids):
        return []
    cuts = (np.flatnonzero(np.diff(ids) != 1) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, len(ids)], strict=True))


class _Streams:
    """The stream that computes (the current one) and the stream of the transfers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._transfers = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._used = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def transfers(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._transfers)

    def settle(self) -> None:
        self._transfers.synchronize()

    def used(self, turn: int) -> None:
        """Record that a buffer was last used by the work that the current stream has so far."""
        self._used[turn].record()

    def compute_after_use(self, turn: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._used[turn])

    def transfers_after_use(self, turn: int) -> None:
        self._transfers.wait_event(self._used[turn])

    def transfers_after_compute(self) -> None:
        self._transfers.wait_stream(torch.cuda.current_stream(self._device))

    def compute_after_transfers(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._transfers)
