"""A step that follows from the one before is what it would be from scratch."""

from copy import deepcopy

import numpy as np
import pytest

from inflight_engine.execution.batch import PersistentBatch
from tests.engine.scheduling.workload import Workload


def scratch(batch):
    """A batch with the same slots, and no step before."""
    other = deepcopy(batch)
    other._decodes = None
    return other


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_follows_from_the_one_before_is_packed_as_from_scratch(seed):
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
    batch = PersistentBatch(config.capacity.max_num_seqs, config.max_model_len, config.block_size)
    num_steady = 0
    for _ in range(500):
        workload.step()
        for plan in workload.driver.plans:
            batch.apply(plan)
            fresh = scratch(batch)
            num_steady += plan.decode_slots is getattr(batch._decodes, "slots", None) and len(plan.decode_slots) > 0
            batch.pack(plan)  # an attempt for which there was no memory
            packed, expected = batch.pack(plan), fresh.pack(plan)
            for name in ("positions", "token_slots", "token_ids", "sampled_slots", "sampled_positions"):
                np.testing.assert_array_equal(getattr(packed, name), getattr(expected, name))
            ours, theirs = packed.attention, expected.attention
            np.testing.assert_array_equal(ours.kv_slots, theirs.kv_slots)
            np.testing.assert_array_equal(ours.decode_context_lens, theirs.decode_context_lens)
            np.testing.assert_array_equal(ours.decode_slots, theirs.decode_slots)
            np.testing.assert_array_equal(
                ours.decode_blocks(config.block_size), theirs.decode_blocks(config.block_size)
            )
            batch.advance(plan)
    assert num_steady > 30
