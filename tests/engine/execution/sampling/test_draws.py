"""Tokens that a draw may choose, and how often: the row alone decides."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.execution.sampling import draws
from inflight_engine.execution.sampling.draws import DrawBatch, draw, uniform
from inflight_engine.native import sample as native

VOCAB = 50


@pytest.fixture(scope="module", params=["kernels", "torch"], autouse=True)
def way(request):
    """Both ways to draw; where no kernels are compiled, both are torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(native, "can_sample", lambda logits: False)
        yield


def batch_of(rows):
    """rows: (temperature, min_p, top_k, top_p, seed, position)."""
    temperature, min_p, top_k, top_p, seed, position = zip(*rows, strict=True)
    return DrawBatch(
        np.array(temperature, np.float64),
        np.array(min_p, np.float64),
        np.array(top_k, np.int64),
        np.array(top_p, np.float64),
        np.array(seed, np.uint64),
        np.array(position, np.int64),
    )


rows = st.tuples(
    st.sampled_from([0.01, 0.7, 1.0, 3.0]),
    st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]),
    st.sampled_from([0, 1, 2, 10, VOCAB, VOCAB + 5]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.05]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 100_000),
)


def logits_of(seed, count, ties=False):
    values = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    return values.round() if ties else values


def allowed_tokens(logits, temperature, min_p, top_k, top_p):
    """The support by definition: rank by logit then id, drop what is below min_p of the likeliest, cut at k, then at
    the least prefix with mass top_p. Two sets, as rounding may decide at the very edges: surely in it, and possibly."""
    order = sorted(range(VOCAB), key=lambda token: (-float(logits[token]), token))
    values = np.array([float(logits[token]) for token in order])
    weights = np.exp((values - values[0]) / temperature)
    sets = []
    for slack in (-1e-9, 1e-9):
        left = [i for i, weight in enumerate(weights) if weight == 1 or weight >= min_p - slack][: top_k or None]
        mass_before = np.concatenate([[0], np.cumsum(weights[left])[:-1]])
        limit = (top_p + slack) * weights[left].sum() if top_p < 1 else np.inf
        sets.append({order[i] for i, mass in zip(left, mass_before, strict=True) if mass < limit})
    return sets


@given(st.lists(rows, min_size=1, max_size=6), st.integers(0, 10**6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_draw_is_in_its_support(params, seed, ties):
    logits = logits_of(seed, len(params), ties)
    tokens = draw(logits, batch_of(params)).tolist()
    for token, row, (*how, _, _) in zip(tokens, logits, params, strict=True):
        assert token in allowed_tokens(row, *how)[1]


@given(st.floats(0.3, 2.0), st.sampled_from([0.3, 0.8, 0.95]), st.sampled_from([0, 3, 12]), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_top_k_then_top_p_keep_exactly_the_smallest_set(temperature, top_p, top_k, seed):
    logits = logits_of(seed, 1, ties=True)
    sure, possible = allowed_tokens(logits[0], temperature, 0.0, top_k, top_p)
    weights = ((logits.double() - logits.max().double()) / temperature).exp()
    kept = draws._keep_likeliest(weights, torch.tensor([[top_k or VOCAB]]), torch.tensor([[top_p]]))
    assert sure <= set(kept[0].nonzero().flatten().tolist()) <= possible


@given(st.floats(0.5, 2.0), st.sampled_from([0.0, 0.02, 0.3]), st.sampled_from([0, 3, 8]), st.sampled_from([1.0, 0.7]))
@settings(max_examples=20, deadline=None)
def test_every_token_of_the_support_is_drawn_as_often_as_its_probability_says(temperature, min_p, top_k, top_p):
    count = 20_000
    row = logits_of(7, 1)[0] / 2
    support = sorted(allowed_tokens(row, temperature, min_p, top_k, top_p)[0])
    weights = np.exp((row.double().numpy()[support] - float(row.max())) / temperature)
    batch = batch_of([(temperature, min_p, top_k, top_p, 3, position) for position in range(count)])
    drawn = np.bincount(draw(row.expand(count, VOCAB), batch).numpy(), minlength=VOCAB)
    expected = np.zeros(VOCAB)
    expected[support] = weights / weights.sum()
    np.testing.assert_allclose(drawn / count, expected, atol=5 * 0.5 / count**0.5)


@given(st.lists(rows, min_size=2, max_size=6), st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_draw_does_not_depend_on_the_rest_of_the_batch(params, seed, rng):
    logits = logits_of(seed, len(params))
    together = draw(logits, batch_of(params)).tolist()
    order = list(range(len(params)))
    rng.shuffle(order)
    assert draw(logits[order], batch_of([params[i] for i in order])).tolist() == [together[i] for i in order]
    assert [int(draw(logits[i : i + 1], batch_of([params[i]]))[0]) for i in order] == [together[i] for i in order]


def test_a_vocabulary_larger_than_the_candidates_gives_the_same_as_a_full_sort(monkeypatch):
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(24, 5000, generator=generator)
    flat = [(1.0, 0.0, 0, 0.99, i, i) for i in range(8)]  # needs more than 1024 candidates
    peaked = [(0.2, 0.0, 0, 0.9, i, i) for i in range(8)]
    wide = [(1.5, 0.0, 2000, 0.95, i, i) for i in range(8)]
    batch = batch_of(flat + peaked + wide)
    quick = draw(logits, batch).tolist()
    monkeypatch.setattr(draws, "_CANDIDATES", 5000)
    assert draw(logits, batch).tolist() == quick


def test_the_total_weight_of_a_row_is_the_same_to_the_last_bit_alone_and_among_others():
    weights = torch.rand(6, 60_000, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    alone = torch.cat([draws._total(weights[i : i + 1]) for i in range(6)])
    assert torch.equal(draws._total(weights), alone)


def test_another_seed_or_position_gives_another_stream():
    logits = torch.zeros(1, VOCAB)
    draws = {
        (seed, position): int(draw(logits, batch_of([(1.0, 0.0, 0, 1.0, seed, position)]))[0])
        for seed in range(20)
        for position in range(20)
    }
    assert len(set(draws.values())) == VOCAB
    assert [draws[0, p] for p in range(20)] != [draws[1, p] for p in range(20)]
    # Neither index is a mere shift of the other.
    assert [draws[1, p] for p in range(19)] != [draws[0, p + 1] for p in range(19)]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniform_is_in_range_and_repeatable(seed, position):
    seeds, positions = np.array([seed], np.uint64), np.array([position], np.int64)
    value = uniform(seeds, positions)[0]
    assert 0 <= value < 1
    assert uniform(seeds, positions)[0] == value


def test_uniform_equals_splitmix64s_published_sequence():
    # First output of splitmix64 seeded with 1234567 (reference implementation, Vigna 2015).
    assert draws._splitmix64(np.array([1234567], np.uint64))[0] == 6457827717110365317


def test_a_tiny_temperature_is_greedy_and_a_banned_token_is_never_drawn():
    logits = torch.tensor([[1.0, 5.0, 4.999, -torch.inf]])
    for seed in range(50):
        assert draw(logits, batch_of([(1e-30, 0.0, 0, 1.0, seed, 0)]))[0] == 1
        assert draw(logits, batch_of([(100.0, 0.0, 0, 1.0, seed, 0)]))[0] != 3


@pytest.mark.parametrize("width", [100, 100_000])
def test_argmax_is_the_first_of_the_greatest_whoever_computes_it(width):
    logits = torch.randn(3, width, generator=torch.Generator().manual_seed(0)).round()
    assert (logits.numel() > draws._SHARED_FROM) == (width == 100_000)
    assert draws.argmax(logits).tolist() == logits.numpy().argmax(-1).tolist()


@pytest.mark.parametrize("how", [(0.0, 0, 1.0), (0.1, 3, 0.9), (0.0, 0, 0.5), (0.0, 2, 1.0)], ids=str)
@pytest.mark.parametrize("broken", [-np.inf, np.inf, np.nan])
def test_a_row_without_a_distribution_gets_some_token_and_the_others_get_theirs(how, broken):
    logits = logits_of(1, 3)
    params = [(1.0, *how, seed, 4) for seed in range(3)]
    expected = draw(logits, batch_of(params)).tolist()
    logits[1] = broken
    first, token, last = draw(logits, batch_of(params)).tolist()
    assert (first, last) == (expected[0], expected[2])
    assert 0 <= token < VOCAB
