"""Reported log-probabilities are those of the model's own logits, likeliest first."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.execution.sampling import logprobs
from inflight_engine.execution.sampling.logprobs import LogprobRequests, gather_logprobs, token_logprobs
from inflight_engine.native import sample as native
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import make_plan
from tests.engine.execution.sampling.slot_tables import start_of

VOCAB = 30


@pytest.fixture(scope="module", params=["kernels", "torch"], autouse=True)
def way(request):
    """Both ways to find the likeliest; where no kernels are compiled, both are torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(native, "can_sample", lambda logits: False)
        yield request.param


def reports_of(logits, token_ids, slots, num_top):
    tensors = gather_logprobs(logits, np.arange(len(logits)), token_ids, int(num_top.max()))
    return token_logprobs(*(tensor.numpy() for tensor in tensors), slots, num_top)


@given(st.integers(0, 10**6), st.lists(st.integers(0, VOCAB + 5), min_size=1, max_size=5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_each_row_reports_its_token_and_as_many_likeliest_as_it_asked_for(seed, num_top, ties):
    logits = torch.randn(len(num_top), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    logits = logits.round() if ties else logits
    sampled = torch.arange(len(num_top)) * 3 % VOCAB
    slots = np.arange(len(num_top)) + 7
    reports = reports_of(logits, sampled, slots, np.array(num_top))
    for row, report, slot, token, count in zip(logits, reports, slots, sampled.tolist(), num_top, strict=True):
        total = math.log(math.fsum(math.exp(float(logit)) for logit in row))
        exact = [float(logit) - total for logit in row]
        assert report.slot == slot
        assert report.logprob == pytest.approx(exact[token], abs=1e-5)
        assert len(report.top_token_ids) == len(report.top_logprobs) == min(count, VOCAB)
        assert report.top_logprobs == pytest.approx([exact[t] for t in report.top_token_ids], abs=1e-5)
        values = row.log_softmax(-1).tolist()
        assert report.top_token_ids == sorted(range(VOCAB), key=lambda t: (-values[t], t))[:count]


def test_named_tokens_are_reported_in_their_order_in_place_of_the_likeliest():
    requests = LogprobRequests(3)
    asked = [SamplingParams(1, logprobs=2), SamplingParams(1, logprobs=1, logprob_token_ids=(7, 3, 29))]
    requests.apply(make_plan(starts=[start_of(slot, [1], [], each) for slot, each in enumerate(asked)]))
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    reported = requests.report(logits, torch.tensor([5, 6]), np.array([1, 0]))
    named, likeliest = token_logprobs(
        *(tensor.numpy() for tensor in reported.tensors), reported.slots, reported.num_top
    )
    assert (named.slot, named.top_token_ids) == (1, [7, 3, 29])
    assert named.top_logprobs == pytest.approx(logits[0].log_softmax(-1)[[7, 3, 29]].tolist(), abs=1e-5)
    assert (likeliest.slot, likeliest.top_token_ids) == (0, logits[1].topk(2).indices.tolist())
    requests.apply(make_plan(releases=[1], starts=[start_of(1, [1], [], SamplingParams(1, logprobs=1))]))
    (again,) = requests.report(logits[:1], torch.tensor([5]), np.array([1])).tensors.top_token_ids.tolist()
    assert again == logits[:1].topk(1).indices.tolist()[0]


def test_a_certain_token_has_the_logarithm_zero_and_comes_first():
    logits = torch.full((1, VOCAB), -1000.0)
    logits[0, 4] = 1000.0
    (report,) = reports_of(logits, torch.tensor([4]), np.array([0]), np.array([2]))
    assert (report.logprob, report.top_token_ids, report.top_logprobs) == (0.0, [4, 0], [0.0, -2000.0])


def test_a_token_that_cannot_be_is_reported_last():
    logits = torch.zeros(1, 3)
    logits[0, 0] = -torch.inf
    (report,) = reports_of(logits, torch.tensor([1]), np.array([0]), np.array([3]))
    assert report.top_token_ids == [1, 2, 0]
    assert report.top_logprobs[2] == -math.inf


def test_rows_in_chunks_report_the_same_and_memory_does_not_follow_their_number(monkeypatch):
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(2)).round()
    rows, token_ids = np.arange(0, 40, 2), torch.arange(40) % VOCAB
    whole = gather_logprobs(logits, rows, token_ids, 5)
    row_bytes, gather, sizes = logprobs._BYTES_PER_LOGIT * VOCAB, logprobs._gather, []
    monkeypatch.setattr(logprobs, "_CHUNK_BYTES", 3 * row_bytes + 1)
    monkeypatch.setattr(
        logprobs, "_gather", lambda logits, rows, *rest: sizes.append(len(rows)) or gather(logits, rows, *rest)
    )
    in_chunks = gather_logprobs(logits, rows, token_ids, 5)
    assert all(torch.equal(one, other) for one, other in zip(whole, in_chunks, strict=True))
    assert max(sizes) == 3
    assert sum(sizes) == 20


def test_without_memory_the_slots_that_ask_are_named(monkeypatch):
    requests = LogprobRequests(3)
    starts = [start_of(slot, [1], [], SamplingParams(9, logprobs=count)) for slot, count in enumerate((0, None, 2))]
    requests.apply(make_plan(starts=starts))

    def gather(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(logprobs, "gather_logprobs", gather)
    reported = requests.report(torch.zeros(3, VOCAB), torch.zeros(3, dtype=torch.int64), np.array([2, 1, 0]))
    assert reported.tensors is None
    assert reported.slots.tolist() == [2, 0]


def test_a_chunk_takes_no_more_than_its_bytes_for_each_logit(way):
    """Checks the peak memory of operations on CPU tensors, whose sizes are a GPU's."""
    if way == "kernels":
        pytest.skip("the kernels have other intermediate results")
    with torch.profiler.profile(profile_memory=True) as profile:
        logprobs._gather(torch.randn(8, 20_000), np.arange(8), torch.zeros(8, dtype=torch.int64), 5, None)
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert most <= 1.1 * logprobs._BYTES_PER_LOGIT * 8 * 20_000 + 4 * 8 * 20_000, "and the logits themselves"
