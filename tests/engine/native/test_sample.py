"""The CPU kernels that choose tokens against numpy, torch and plain loops, in every variant that runs here."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.execution.sampling import draws
from inflight_engine.native import sample as native
from inflight_engine.request import SamplingParams
from tests.engine.execution.reference_sampler import reference_token
from tests.engine.native.variants import VARIANTS, kernels


@pytest.fixture(scope="module", params=VARIANTS, autouse=True)
def variant(request):
    with kernels(request.param):
        yield request.param


def logits_of(seed, count, width, scale=3.0, ties=False):
    values = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * scale
    return values.round() if ties else values


def batch_of(rows):
    """rows: (temperature, min_p, top_k, top_p, seed, position)."""
    kinds = (np.float64, np.float64, np.int64, np.float64, np.uint64, np.int64)
    return draws.DrawBatch(
        *(np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True))
    )


hows = st.tuples(
    st.sampled_from([0.01, 0.7, 1.0, 3.0, 40.0]),
    st.sampled_from([0.0, 0.0, 0.001, 0.1, 1.0]),
    st.sampled_from([0, 0, 1, 2, 10, 100, 700, 10**6]),
    st.sampled_from([1.0, 1.0, 0.9999, 0.95, 0.5, 0.05]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 100_000),
)


@given(st.integers(1, 5), st.integers(1, 3000), st.integers(0, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_argmax_is_numpys(count, width, seed, data):
    logits = logits_of(seed, count, width, ties=True)
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, count * width - 1))
        logits.view(-1)[place] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    assert native.argmax(logits).tolist() == logits.numpy().argmax(-1).tolist()


def test_argmax_of_a_row_without_any_chance_is_its_first():
    assert native.argmax(torch.full((2, 100), -torch.inf)).tolist() == [0, 0]


def on_a_boundary(row, how, tokens):
    """True if the drawn number is within rounding of where one of two tokens ends and the next begins."""
    weights = ((row.double() - row.max().double()) / how[0]).exp()
    kept = draws._keep_likeliest(
        (weights * (weights >= how[1]))[None],
        torch.tensor([[how[2] or len(row)]]).clamp(max=len(row)),
        torch.tensor([[how[3]]]),
    )[0]
    cumulative = kept.cumsum(-1) / kept.sum()
    number = draws.uniform(np.array([how[4]], np.uint64), np.array([how[5]], np.int64))[0]
    return abs(float(cumulative[min(tokens)]) - number) < 1e-12


@given(
    st.lists(hows, min_size=1, max_size=6),
    st.sampled_from([3, 50, 512, 513, 4000]),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_draws_are_those_of_torch(params, width, seed, ties):
    logits = logits_of(seed, len(params), width, ties=ties)
    batch = batch_of(params)
    ours = draws.draw(logits, batch).tolist()
    theirs = draws._draw(logits, batch, draws.uniform(batch.seed, batch.position)).tolist()
    for row, how, tokens in zip(logits, params, zip(ours, theirs, strict=True), strict=True):
        assert tokens[0] == tokens[1] or on_a_boundary(row, how, tokens)


@given(hows, st.sampled_from([3, 50, 700]), st.integers(0, 10**6), st.booleans())
@settings(max_examples=100, deadline=None)
def test_draws_are_those_of_plain_loops(how, width, seed, ties):
    row = logits_of(seed, 1, width, ties=ties)
    temperature, min_p, top_k, top_p, stream, position = how
    params = SamplingParams(max_tokens=9, temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p, seed=stream)
    expected = reference_token(row[0].numpy(), [0] * position, [], params)
    token = int(draws.draw(row, batch_of([how]))[0])
    assert token == expected or on_a_boundary(row[0], how, (token, expected))


@pytest.mark.parametrize(
    "how", [(1.0, 0.0, 0, 1.0), (0.8, 0.0, 50, 0.95), (1.0, 0.0, 0, 0.95), (1.2, 0.01, 2000, 0.99)]
)
def test_a_row_is_drawn_alike_alone_and_among_others_and_wherever_it_lies(how):
    params = [(*how, seed, 7) for seed in range(40)]
    logits = logits_of(1, 40, 49152)
    batch = batch_of(params)
    together = draws.draw(logits, batch).tolist()
    rows = np.arange(40)[::-3].copy()
    some = batch_of([params[row] for row in rows])
    assert draws.draw(logits, some, rows).tolist() == [together[row] for row in rows]
    assert [int(draws.draw(logits[row : row + 1], batch_of([params[row]]))[0]) for row in rows] == [
        together[row] for row in rows
    ]
    strided = torch.zeros(40, 50_001)[:, 3:49155]
    strided.copy_(logits)
    assert draws.draw(strided, batch).tolist() == together


def test_a_row_in_which_nothing_can_be_drawn_gives_a_valid_token():
    logits = torch.zeros(3, 600)
    logits[0, 5], logits[1, :], logits[2, 7] = torch.nan, -torch.inf, torch.inf
    for how in ((1.0, 0.0, 0, 1.0, 3, 4), (1.0, 0.1, 5, 0.5, 3, 4)):
        assert draws.draw(logits, batch_of([how] * 3)).tolist() == [5, 0, 7]


@given(st.integers(1, 4), st.integers(1, 3000), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_log_probabilities_and_the_likeliest_are_torchs(count, width, seed, ties):
    logits = logits_of(seed, count + 2, width, ties=ties)
    logits[0, 0] = -torch.inf
    rows = np.arange(count + 1, 0, -1)
    ours = native.log_softmax(logits, rows)
    torch.testing.assert_close(ours, logits[torch.from_numpy(rows)].log_softmax(-1), atol=3e-6, rtol=1e-6)
    top = min(5, width)
    expected = [sorted(range(width), key=lambda token: (-row[token], token))[:top] for row in ours.tolist()]
    assert native.likeliest(ours, top).tolist() == expected


def test_a_batch_that_threads_share_gives_what_its_rows_give_alone():
    """Small batches are one thread's, and so is every row here that is alone."""
    logits = logits_of(2, 6, 60_000, ties=True)
    rows = np.arange(6)
    together = native.log_softmax(logits, rows)
    assert native.argmax(logits).tolist() == [int(native.argmax(row[None])[0]) for row in logits]
    assert all(torch.equal(together[row], native.log_softmax(logits, rows[row : row + 1])[0]) for row in rows)
    assert native.likeliest(logits, 7).tolist() == [native.likeliest(row[None], 7)[0].tolist() for row in logits]


def test_all_tokens_can_be_asked_for_in_order():
    values = logits_of(5, 2, 1500, ties=True)
    order = native.likeliest(values, 1500)
    assert order.tolist() == [sorted(range(1500), key=lambda token: (-row[token], token)) for row in values.tolist()]


def test_the_kernels_are_not_asked_where_they_cannot_answer(variant):
    assert native.can_sample(torch.zeros(2, 5))
    assert not native.can_sample(torch.zeros(2, 5, dtype=torch.float64))
    assert not native.can_sample(torch.zeros(5, 2).T)
    assert not native.can_sample(torch.zeros(2, 5, device="meta"))
