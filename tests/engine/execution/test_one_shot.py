"""Sums that take one kernel, on a machine without GPUs: stand-ins replace torch's kernel and memory."""

import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from inflight_engine.execution.parallel.one_shot import OneShotSum
from inflight_engine.execution.parallel.process_group import TorchDistributed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture
def one_shot(monkeypatch):
    """Simulates four ranks; the three others have ones everywhere."""
    shared = []

    def one_shot_all_reduce_copy(symm_buffer, local_input, reduce_op, group_name):
        assert (reduce_op, group_name) == ("sum", "0")
        assert symm_buffer.untyped_storage().data_ptr() == shared[0].untyped_storage().data_ptr()
        assert (symm_buffer.dtype, symm_buffer.shape) == (local_input.dtype, local_input.shape)
        assert symm_buffer.is_contiguous()
        assert local_input.is_contiguous()
        return local_input + 3

    monkeypatch.setattr(dist, "group", types.SimpleNamespace(WORLD=types.SimpleNamespace(group_name="0")))
    monkeypatch.setattr(symmetric_memory, "empty", torch.empty)
    monkeypatch.setattr(symmetric_memory, "rendezvous", lambda tensor, group: shared.append(tensor))
    monkeypatch.setattr(torch.ops.symm_mem, "one_shot_all_reduce_copy", one_shot_all_reduce_copy)
    one_shot = OneShotSum(4, CPU)
    one_shot.meet()
    return one_shot


def test_small_tensors_are_summed_and_stay_as_they_are(one_shot):
    x = torch.arange(48, dtype=torch.bfloat16).view(6, 8)[:, ::2]
    before = x.clone()
    assert torch.equal(one_shot(x), before + 3)
    assert torch.equal(x, before)


def test_large_and_odd_tensors_are_left_to_nccl(one_shot):
    for shape, taken in [((64, 4096), True), ((65, 4096), False), ((1, 7), False), ((0, 8), False)]:
        assert one_shot.takes(torch.empty(shape, dtype=torch.bfloat16)) == taken


def test_a_group_chooses_by_size(one_shot, monkeypatch):
    group = TorchDistributed.__new__(TorchDistributed)
    group._one_shot, group._in_order = one_shot, False
    monkeypatch.setattr(dist, "all_reduce", lambda x: x.mul_(0))
    assert torch.equal(group.all_reduce(torch.ones(2, 8)), torch.full((2, 8), 4.0))
    assert torch.equal(group.all_reduce(torch.ones(2, 7)), torch.zeros(2, 7))


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True)])
def test_all_ranks_use_it_or_none(one_shot, monkeypatch, here, there):
    made = []
    monkeypatch.setattr(OneShotSum, "why_not", lambda size, device: None if here else "it needs GPUs")
    monkeypatch.setattr(OneShotSum, "__init__", lambda self, size, device: made.append(self))
    monkeypatch.setattr(OneShotSum, "meet", lambda self: None)
    monkeypatch.setattr(TorchDistributed, "minimum", lambda self, value: min(value, int(there)))
    group = TorchDistributed.__new__(TorchDistributed)
    group.size = 4
    assert (group._make_one_shot(GPU) is not None) == (here and there)
    assert len(made) == (here and there)


@pytest.mark.parametrize("here", [False, True], ids=["on another rank", "on this rank"])
def test_no_rank_waits_for_one_that_has_no_memory_to_share(one_shot, monkeypatch, here):
    agreed = []

    def make(self, size, device):
        if here:
            raise RuntimeError("no memory")

    def minimum(self, value):
        agreed.append(value)
        return value if here or len(agreed) < 2 else 0

    monkeypatch.setattr(OneShotSum, "why_not", lambda size, device: None)
    monkeypatch.setattr(OneShotSum, "__init__", make)
    monkeypatch.setattr(OneShotSum, "meet", lambda self: pytest.fail("it would wait for ever"))
    monkeypatch.setattr(TorchDistributed, "minimum", minimum)
    group = TorchDistributed.__new__(TorchDistributed)
    group.size = 4
    assert group._make_one_shot(GPU) is None
    assert agreed == [1, int(not here)], "each rank asks as often"


@pytest.mark.parametrize(
    ("size", "device", "reachable", "reason"),
    [
        (2, CPU, True, "it needs GPUs"),
        (3, GPU, True, "it is for 2, 4, 8 GPUs, not 3"),
        (4, GPU, False, "not every GPU can read every other's memory"),
        (8, GPU, True, None),
    ],
)
def test_where_it_cannot_be_used(monkeypatch, size, device, reachable, reason):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: reachable or other != 3)
    assert OneShotSum.why_not(size, device) == reason
