"""The block table on the device equals the host's, after any plans."""

import numpy as np
import pytest
import torch

from inflight_engine.execution.attention import gpu_step
from inflight_engine.execution.attention.base import AttentionBatch
from inflight_engine.execution.attention.gpu_step import DeviceBlockTable
from inflight_engine.execution.batch import PersistentBatch
from tests.engine.execution.attention.reference import make_spec
from tests.engine.scheduling.workload import Workload

NONE = np.zeros(0, np.int64)


@pytest.mark.parametrize("seed", range(4))
def test_after_random_plans_it_is_the_hosts_and_only_changes_were_sent(seed, monkeypatch):
    workload = Workload(
        seed,
        lookahead=seed % 2 == 0,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        max_model_len=40,
        block_size=1 + seed % 4,
        num_blocks=100,
    )
    config = workload.driver.config
    spec = make_spec(max_num_seqs=6, max_model_len=40, block_size=config.block_size)
    batch = PersistentBatch(6, config.max_model_len, config.block_size)
    device = DeviceBlockTable(spec)
    address = device.rows.data_ptr()
    sent = []

    def upload(array, at):
        sent.append(array.shape[1])
        return torch.from_numpy(array)

    monkeypatch.setattr(gpu_step, "upload", upload)
    changes = num_steps = 0
    for _ in range(300):
        workload.step()
        for plan in workload.driver.plans:
            batch.apply(plan)
            changes += sum(len(start.block_ids) for start in plan.all_starts)
            changes += 0 if plan.growth is None else len(plan.growth.slots)
            if plan.num_tokens == 0:
                continue
            num_steps += 1
            packed = batch.pack(plan).attention
            device.update(packed)
            batch.advance(plan)
            width = packed.block_table.shape[1]
            np.testing.assert_array_equal(device.rows[:, :width].numpy(), packed.block_table)
    assert device.rows.data_ptr() == address
    assert num_steps > 100
    assert sum(sent) <= changes


def test_rows_are_a_multiple_of_16_long_and_int32():
    for max_model_len, width in [(256, 16), (257, 32), (16, 16), (131072, 8192)]:
        rows = DeviceBlockTable(make_spec(max_model_len=max_model_len, max_num_seqs=2)).rows
        assert (rows.shape, rows.dtype) == ((2, width), torch.int32)


def test_without_changes_nothing_is_sent(monkeypatch):
    device = DeviceBlockTable(make_spec())
    monkeypatch.setattr(gpu_step, "upload", None)
    device.update(AttentionBatch(NONE, NONE, NONE, (), np.ones((8, 3), np.int64), NONE))
    assert int(device.rows.abs().sum()) == 0
