"""The draw kernel in Triton's interpreter against the draws of torch; run as `interpreted_ops` is."""

import numpy as np
import pytest
import torch

from inflight_engine.execution.sampling import draws, draws_triton
from inflight_engine.execution.sampling.draws import DrawBatch, uniform

VOCAB = 90


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(draws_triton, "_BLOCK", 64)


def batch_of(count, seed):
    """All filters in all combinations."""
    rng = np.random.default_rng(seed)
    return DrawBatch(
        rng.choice([0.3, 0.8, 1.0, 2.0], count),
        rng.choice([0.0, 0.0, 0.05, 0.3], count),
        rng.choice([0, 0, 1, 2, 7, VOCAB, VOCAB + 9], count),
        rng.choice([1.0, 1.0, 0.95, 0.5, 0.01], count),
        rng.integers(0, 2**63, count).astype(np.uint64),
        rng.integers(0, 1000, count),
    )


def by_kernel(logits, rows, batch):
    top_k = np.where(batch.top_k > 0, batch.top_k, logits.shape[1])
    number = uniform(batch.seed, batch.position)
    how = np.stack([batch.temperature, batch.min_p, top_k, batch.top_p, number])
    return draws_triton.draw_rows(logits, np.array(rows), how).tolist()


@pytest.mark.parametrize("ties", [False, True])
def test_draws_are_torchs(ties):
    count = 12
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    if ties:
        logits = logits.round()
    batch = batch_of(count, 1)
    expected = draws._draw(logits, batch, uniform(batch.seed, batch.position)).tolist()
    assert by_kernel(logits, range(count), batch) == expected
    assert len(set(expected)) > 5


def test_rows_are_chosen_and_alone_they_draw_the_same():
    logits = torch.randn(9, VOCAB, generator=torch.Generator().manual_seed(4))
    batch = batch_of(3, 2)
    together = by_kernel(logits, [7, 0, 3], batch)
    one = DrawBatch(*(column[1:2] for column in (getattr(batch, name) for name in DrawBatch.__slots__)))
    assert by_kernel(logits, [0], one) == together[1:2]


def test_a_number_at_the_very_end_takes_the_last_token_left():
    logits = torch.zeros(1, VOCAB)
    end = np.nextafter(1.0, 0.0)
    for top_k, last in ((VOCAB, VOCAB - 1), (5, 4)):
        how = np.array([[1.0], [0.0], [top_k], [1.0], [end]])
        assert draws_triton.draw_rows(logits, np.array([0]), how).tolist() == [last]


def test_tokens_that_cannot_be_are_never_drawn():
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, [5, 70]] = torch.tensor([-3.0, -3.5])
    for number in (0.0, 0.5, 0.7, 0.999999):
        for top_k, top_p in ((VOCAB, 1.0), (10, 0.9)):
            how = np.array([[1.0], [0.0], [top_k], [top_p], [number]])
            assert draws_triton.draw_rows(logits, np.array([0]), how).item() == (70 if number > 0.63 else 5)
