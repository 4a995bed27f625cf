"""The block table of all slots in device memory; each step sends only its changes."""

from __future__ import annotations

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec
from inflight_engine.execution.memory.staging import upload

_COLUMNS = 16
"""Rows are a multiple of this long: they begin at multiples of 64 bytes, and Triton, which compiles a kernel again for
sizes that 16 does not divide, has one variant for all lengths of sequences."""


class DeviceBlockTable:
    """Copy of the host's block table, at one address. A table sent whole with each step would be 8 MB for one sequence
    of 128k tokens.

    Attributes:
        rows: int32 [max_num_seqs, blocks of the longest sequence or more]; entries past a sequence's blocks are any
            valid block.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        blocks = -(-spec.max_model_len // spec.block_size)
        width = -(-blocks // _COLUMNS) * _COLUMNS
        self.rows = torch.zeros((spec.max_num_seqs, width), dtype=torch.int32, device=spec.device)
        self._cells = self.rows.view(-1)

    def update(self, batch: AttentionBatch) -> None:
        """Bring the rows to what the batch's are, in the order of the device's stream: a step that is under way reads
        them as they were."""
        changed = batch.changed_cells
        if not len(changed):
            return
        slots, columns = np.divmod(changed, batch.block_table.shape[1])
        cells = slots * self.rows.shape[1] + columns
        sent = upload(np.stack([cells, batch.block_table.reshape(-1)[changed]]), self.rows.device)
        self._cells.index_copy_(0, sent[0], sent[1].to(torch.int32))
