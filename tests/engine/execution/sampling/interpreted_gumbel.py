"""The sampling kernels in Triton's interpreter against plain torch; run as `interpreted_ops` is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton.language as tl

from inflight_engine.execution.sampling import grammar_masks, gumbel_triton, triton_logits, triton_mask
from inflight_engine.execution.sampling import slot_table as columns
from inflight_engine.request import SamplingParams
from tests.engine.execution.sampling import gumbel
from tests.engine.execution.sampling.slot_tables import random_samplings, table_of

VOCAB = 90


@pytest.fixture(autouse=True)
def _small_splits(monkeypatch):
    """And a short list, which some rows fill: in the interpreter a launch takes milliseconds a program."""
    sizes = {"_SPAN": 64, "_BLOCK": 32, "_BINS": 32, "_LISTED": 8, "_SEARCH_BLOCK": 32}
    for name, size in sizes.items():
        monkeypatch.setattr(gumbel_triton, name, size)


def logits_of(count):
    """Every other row has ties."""
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    logits[1::2] = logits[1::2].round()
    return logits


@pytest.mark.parametrize("listed", [1, 128])
def test_tokens_are_those_of_torch_with_ties_and_without_listed_or_read_again(monkeypatch, listed):
    monkeypatch.setattr(gumbel_triton, "_LISTED", listed)
    count = 12
    logits = logits_of(count)
    given_logits = logits.clone()
    table = table_of(random_samplings(np.random.default_rng(5), count, VOCAB), VOCAB)
    slots, positions = torch.arange(count).flip(0), torch.arange(count) * 7
    expected = gumbel.choose(logits, slots, positions, table).tolist()
    assert gumbel_triton.choose(logits, slots, positions, table).tolist() == expected
    assert torch.equal(logits, given_logits)
    assert len(set(expected)) > 6


def test_a_row_with_few_likely_tokens_is_not_searched_whole(monkeypatch):
    """The fiftieth likeliest token of real logits is often more than 16 temperatures below the first."""
    monkeypatch.setattr(gumbel_triton, "_BINS", 1024)
    found = {}

    class Kept:
        def __getitem__(self, grid):
            return lambda *arguments, **options: (
                found.update(bounds=arguments[6]) or cut_kernel[grid](*arguments, **options)
            )

    cut_kernel = gumbel_triton.cut_kernel
    monkeypatch.setattr(gumbel_triton, "cut_kernel", Kept())
    samplings = [
        SamplingParams(9, temperature=0.3, top_k=top_k, top_p=top_p, seed=1)
        for top_k in (5, 20)
        for top_p in (1.0, 0.9)
    ]
    table, logits = table_of(samplings, VOCAB), logits_of(len(samplings))
    logits[:, 7] = 30.0
    slots, positions = torch.arange(len(samplings)), torch.arange(len(samplings))
    expected = gumbel.choose(logits, slots, positions, table).tolist()
    assert gumbel_triton.choose(logits, slots, positions, table).tolist() == expected
    sizes = found["bounds"][:, 3].tolist()
    assert all(0 < size <= VOCAB / 2 for size in sizes), sizes


def test_biases_of_most_of_the_vocabulary_change_tokens_as_torch_does_and_leave_the_logits(monkeypatch):
    monkeypatch.setattr(gumbel_triton, "_BIASES", 64)
    monkeypatch.setattr(columns, "MOST_BIASES", 128)
    monkeypatch.setattr(triton_logits, "_MOST_BIASES", tl.constexpr(128))
    rng = np.random.default_rng(6)
    biases = tuple(zip(rng.permutation(VOCAB)[:80].tolist(), rng.normal(0, 3, 80).tolist(), strict=True))
    filters = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 7, "top_p": 0.9}, {"repetition_penalty": 1.5}]
    samplings = [
        SamplingParams(9, min_tokens=20, stop_token_ids=(3, 9), logit_bias=each, seed=4, **filter)
        for each in (biases, ())
        for filter in filters
    ]
    table, logits = table_of(samplings, VOCAB), logits_of(len(samplings))
    logits[0, 5], logits[4, 3] = -torch.inf, 100.0
    before = logits.clone()
    slots, positions = torch.arange(len(samplings)), torch.arange(len(samplings))
    expected = gumbel.choose(logits, slots, positions, table).tolist()
    assert gumbel_triton.choose(logits, slots, positions, table).tolist() == expected
    assert torch.equal(logits, before)
    assert not {3, 9} & {*expected}
    plain = table_of([replace(each, logit_bias=()) for each in samplings], VOCAB)
    assert gumbel.choose(logits, slots, positions, plain).tolist() != expected


def test_a_row_alone_and_beside_padding_draws_as_among_others():
    samplings = [SamplingParams(9, temperature=1.0, top_k=40, top_p=0.9, seed=seed) for seed in range(2)]
    table, logits = table_of(samplings, VOCAB), logits_of(2)
    slots, positions = torch.arange(2), torch.tensor([5, 6])
    together = gumbel_triton.choose(logits, slots, positions, table)
    padded = gumbel_triton.choose(logits[[1, 0, 0]], torch.tensor([1, 2, 2]), torch.tensor([6, 0, 0]), table)
    assert padded[0] == together[1]
    assert padded[1] == logits[0].argmax()


def test_tokens_that_cannot_be_are_never_drawn_and_rows_of_none_stay_in_the_vocabulary():
    table = table_of([SamplingParams(9, temperature=1.0, top_k=10, top_p=0.9, seed=1), SamplingParams(9)], VOCAB)
    logits = torch.full((4, VOCAB), -torch.inf)
    logits[0, [5, 70]] = torch.tensor([-3.0, -3.5])
    logits[2:] = torch.nan
    chosen = gumbel_triton.choose(logits, torch.tensor([0, 0, 0, 1]), torch.arange(4), table)
    assert chosen[0] in (5, 70)
    assert ((chosen >= 0) & (chosen < VOCAB)).all()


class Watched:
    """Instead of kernels: how far beyond a multiple of 16 bytes the tensors begin that they are launched with."""

    def __init__(self):
        self.remainders = set()

    def __getitem__(self, grid):
        return self._launch

    def _launch(self, *arguments, **options):
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        self.remainders |= {each.storage_offset() * each.itemsize % 16 for each in tensors}


def test_no_number_of_rows_moves_a_tensor_so_that_a_kernel_is_compiled_again(monkeypatch):
    watched = Watched()
    for name in ("bias", "peak", "weigh", "bound", "list", "cut", "pick", "combine"):
        monkeypatch.setattr(gumbel_triton, f"{name}_kernel", watched)
    table = table_of([SamplingParams(9)] * 3, VOCAB)
    for count in (1, 2, 3):
        gumbel_triton.choose(logits_of(count), torch.arange(count), torch.arange(count), table)
    assert watched.remainders == {0}


def test_tokens_are_counted_as_torch_counts_them():
    tables = [table_of([SamplingParams(9, repetition_penalty=1.5)] * 3, VOCAB) for _ in range(2)]
    tables[0].met[1, 4] = tables[1].met[1, 4] = 2**15 - 1
    slots = torch.tensor([2, 0, 1, 3, 3])
    for token_ids in ([3, 2, 4, 0, 0], [3, 50, 5, 0, 0]):
        gumbel.count(slots, torch.tensor(token_ids), tables[0])
        gumbel_triton.count(slots, torch.tensor(token_ids), tables[1])
        assert torch.equal(tables[0].met, tables[1].met)
    assert tables[0].met[2, 3] == 2 * 4
    assert tables[0].met[1, 4] == 2**15 - 1


def test_masked_logits_of_a_grammar_are_those_of_numpy(monkeypatch):
    monkeypatch.setattr(triton_mask, "_BLOCK", 64)
    masked = logits_of(5)
    expected, bits = masked.clone(), np.random.default_rng(2).integers(-(2**31), 2**31, (3, 4)).astype(np.int32)
    rows = np.array([4, 0, 2])
    grammar_masks.mask_rows(expected, rows, bits)
    triton_mask.mask_on_device(masked, torch.from_numpy(rows), torch.from_numpy(bits))
    assert torch.equal(masked, expected)
    assert torch.isinf(masked).sum() > 100
