"""Draws by the Gumbel-max trick: how often each token is drawn, which may be, and what decides it.

Chi-square: the statistic is at most the quantile that it exceeds once in 10,000 times; seeds are fixed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.request import SamplingParams
from tests.engine.execution.reference_sampler import kept_tokens, splitmix64
from tests.engine.execution.sampling import gumbel
from tests.engine.execution.sampling.slot_tables import random_samplings, table_of

VOCAB = 30
COUNT = 20_000


def probabilities(row, sampling):
    """[VOCAB] float64, and which tokens may be drawn."""
    kept, weight = kept_tokens(row.tolist(), sampling)
    exact = np.zeros(VOCAB)
    exact[kept] = [weight[token] for token in kept]
    return exact / exact.sum(), kept


def quantile(degrees):
    """The 0.9999 quantile of chi-square (Wilson, Hilferty 1931)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.719 * (2 / (9 * degrees)) ** 0.5) ** 3


ROWS = {
    "random": torch.randn(VOCAB, generator=torch.Generator().manual_seed(7)) * 1.5,
    "ties": (torch.randn(VOCAB, generator=torch.Generator().manual_seed(8)) * 1.5).round(),
    "flat": torch.zeros(VOCAB),
}


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"top_k": 9, "top_p": 0.7},
    {"top_p": 0.9, "min_p": 0.1},
    {"temperature": 0.7, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
]
AMONG_TIES = [{"top_k": 1}, {"top_k": 7}, {"top_p": 0.6}, {"min_p": 0.2}, FILTERS[-1]]
"""Filters that have to cut between equal logits."""


@pytest.mark.parametrize(
    ("row", "filters"),
    [
        *(("random", filters) for filters in FILTERS),
        *(("ties", filters) for filters in AMONG_TIES),
        *(("flat", filters) for filters in ({}, {"top_k": 7}, {"top_p": 0.6})),
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join(each) or "none",
)
def test_every_token_is_drawn_as_often_as_its_probability_says(row, filters):
    sampling = SamplingParams(9, **{"temperature": 1.0, "seed": 11} | filters)
    table = table_of([sampling], VOCAB, output=())
    logits = ROWS[row].expand(COUNT, VOCAB)
    tokens = gumbel.choose(logits, torch.zeros(COUNT, dtype=torch.int64), torch.arange(COUNT), table)
    drawn = np.bincount(tokens.numpy(), minlength=VOCAB)
    exact, kept = probabilities(ROWS[row], sampling)
    assert drawn.sum() == drawn[kept].sum(), "only tokens that the filters leave"
    if len(kept) > 1:
        expected = COUNT * exact[kept]
        assert ((drawn[kept] - expected) ** 2 / expected).sum() < quantile(len(kept) - 1)


def test_a_rare_token_is_drawn_as_often_as_its_probability_says():
    """The last bits of the noise decide that."""
    logits = torch.zeros(2**20 // VOCAB, VOCAB)
    logits[:, 0] = 9.0  # the others have 29 x 1.2e-4 together
    table = table_of([SamplingParams(9, temperature=1.0, seed=1)], VOCAB)
    tokens = gumbel.choose(logits, torch.zeros(len(logits), dtype=torch.int64), torch.arange(len(logits)), table)
    share = 29 / (29 + np.exp(9.0))
    assert (tokens != 0).sum().item() == pytest.approx(len(logits) * share, abs=4 * (len(logits) * share) ** 0.5)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_noise_is_splitmix64s_of_seed_position_and_token(seed, position):
    found = gumbel.exponential(torch.tensor([seed]), torch.tensor([position]), 5)[0]
    stream = splitmix64((splitmix64(seed % 2**64) + position) % 2**64)
    for token in range(5):
        share = ((splitmix64(stream + token * 0x9E3779B97F4A7C15) >> 24) + 0.5) * 2.0**-40
        assert float(found[token]) == pytest.approx(-np.log1p(-share), rel=2e-4)


def test_noise_is_positive_and_finite_at_both_ends(monkeypatch):
    for output in (0, -1):
        monkeypatch.setattr(gumbel, "_splitmix64", lambda x, output=output: torch.full_like(x, output))
        found = gumbel.exponential(torch.tensor([1]), torch.tensor([1]), 3)
        assert (found > 0).all()
        assert found.isfinite().all()


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_a_token_depends_on_its_row_alone(seed, random):
    count = 6
    table = table_of(random_samplings(np.random.default_rng(seed), count, VOCAB), VOCAB)
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    slots, positions = torch.arange(count), torch.arange(count) * 5
    together = gumbel.choose(logits, slots, positions, table)
    order = random.sample(range(count), count)
    assert torch.equal(gumbel.choose(logits[order], slots[order], positions[order], table), together[order])
    padding = torch.full((2,), count)
    padded = gumbel.choose(
        torch.cat([logits[:1], logits[:2]]), torch.cat([slots[:1], padding]), torch.cat([positions[:1], padding]), table
    )
    assert padded[0] == together[0]


def test_another_seed_or_position_gives_another_stream():
    table = table_of([SamplingParams(9, temperature=1.0, seed=seed) for seed in range(20)], VOCAB)
    slots, positions = torch.arange(20).repeat_interleave(20), torch.arange(20).repeat(20)
    drawn = gumbel.choose(torch.zeros(400, VOCAB), slots, positions, table).view(20, 20)
    assert len(set(drawn.flatten().tolist())) == VOCAB
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1, :19], drawn[0, 1:]), "neither index is a mere shift of the other"


def test_a_tiny_temperature_is_greedy_and_a_banned_token_is_never_drawn():
    logits = torch.tensor([[1.0, 5.0, 4.999, -torch.inf]]).expand(50, 4)
    zeros, positions = torch.zeros(50, dtype=torch.int64), torch.arange(50)
    for temperature, allowed in ((1e-30, {1}), (100.0, {0, 1, 2})):
        table = table_of([SamplingParams(9, temperature=temperature)], 4)
        assert set(gumbel.choose(logits, zeros, positions, table).tolist()) == allowed


def test_a_token_that_is_met_too_often_for_its_counter_counts_as_often_as_that_holds():
    table = table_of([SamplingParams(9, frequency_penalty=0.1)], VOCAB, output=[4] * 20_000)
    assert table.met[0, 4] == 2**15 - 2
    gumbel.count(torch.tensor([0]), torch.tensor([4]), table)
    assert table.met[0, 4] == 2**15 - 2
