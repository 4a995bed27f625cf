"""Every sampling parameter against a plain implementation, in batches that come, go, and mix all of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from inflight_engine.execution.sampling import host_sampler
from inflight_engine.execution.sampling.host_sampler import HostSampler
from inflight_engine.execution.sampling.logprobs import token_logprobs
from inflight_engine.output import StepOutput
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import make_plan
from tests.engine.execution.reference_sampler import changed_logits, inverted, raced, reference_token
from tests.engine.execution.sampling import gumbel
from tests.engine.execution.sampling.slot_tables import CPU, start_of

VOCAB = 20
SLOTS = 4


def make_sampler(kind, slots):
    return HostSampler(slots) if kind == "host" else gumbel.PlainSampler(slots, VOCAB, CPU)


DRAWN = {"host": inverted, "device": raced}

tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.just(100),
    temperature=st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.4]),
    top_k=st.sampled_from([0, 0, 1, 5, VOCAB + 3]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -0.2]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 0.3, 4.0]), max_size=3).map(
        lambda biases: tuple(biases.items())
    ),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=3, unique=True).map(tuple),
    min_tokens=st.sampled_from([0, 0, 1, 8]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, None, 0, 3]),
)


def logits_of(seed, count):
    # Halves, so that there are ties, and differences that penalties turn around.
    return (torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4).round() / 2


def sample(state, logits, requests):
    """requests: slot -> (prompt, output, sampling). Returns what the state samples for them, in the given order."""
    slots = np.array(list(requests), np.intp)
    state.apply(make_plan(decodes=slots))
    positions = np.array([len(prompt) + len(output) for prompt, output, _ in requests.values()], np.int64)
    return chosen(state, logits.clone(), slots, positions)


def chosen(state, logits, slots, positions):
    """Tokens that the state chooses and counts, and its report."""
    on_device = torch.from_numpy(slots)
    token_ids = state.choose(logits, on_device, torch.from_numpy(positions))
    state.count(on_device, token_ids)
    reported = state.report(logits, token_ids, slots)
    if reported is None:
        return StepOutput(token_ids.int().numpy(), [])
    tensors = (tensor.numpy() for tensor in reported.tensors)
    return StepOutput(token_ids.int().numpy(), token_logprobs(*tensors, reported.slots, reported.num_top))


class Sampling(RuleBasedStateMachine):
    """Requests start, are sampled in any company, are preempted, and leave their slots to others."""

    kind = "host"

    @initialize()
    def begin(self):
        self.state = make_sampler(self.kind, SLOTS)
        self.running = {}
        self.waiting = []
        self.releases = []

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(prompt=tokens, sampling=samplings, resume=st.booleans(), data=st.data())
    def start(self, prompt, sampling, resume, data):
        request = self.waiting.pop() if resume and self.waiting else (prompt, [], sampling)
        slot = data.draw(st.sampled_from([slot for slot in range(SLOTS) if slot not in self.running]))
        self.running[slot] = request
        self.state.apply(make_plan(releases=self.releases, starts=[start_of(slot, *request)]))
        self.releases = []

    @precondition(lambda self: self.running)
    @rule(data=st.data(), comes_back=st.booleans())
    def release(self, data, comes_back):
        slot = data.draw(st.sampled_from(sorted(self.running)))
        request = self.running.pop(slot)
        if comes_back:
            self.waiting.append(request)
        self.releases.append(slot)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seed=st.integers(0, 10**6))
    def sample(self, data, seed):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.running)), min_size=1, unique=True))
        requests = {slot: self.running[slot] for slot in slots}
        logits = logits_of(seed, len(slots))
        output = sample(self.state, logits, requests)
        expected = [
            reference_token(row, *requests[slot], DRAWN[self.kind])
            for row, slot in zip(logits.numpy(), slots, strict=True)
        ]
        assert output.token_ids.tolist() == expected
        assert output.token_ids.dtype == np.int32
        reported = [slot for slot in slots if requests[slot][2].logprobs is not None]
        assert [entry.slot for entry in output.logprobs] == reported
        for entry in output.logprobs:
            row = logits[slots.index(entry.slot)]
            token = output.token_ids[slots.index(entry.slot)]
            assert entry.logprob == pytest.approx(float(row.log_softmax(-1)[token]), abs=1e-5), "the model's own"
        for slot, token in zip(slots, expected, strict=True):
            self.running[slot][1].append(token)

    @invariant()
    def nothing_is_kept_for_slots_without_a_request(self):
        if self.running or self.releases or self.kind == "device":
            return
        assert not self.state._asks.any()
        assert len(self.state._penalties._met) == len(self.state._biases) == 0


class OnDevice(Sampling):
    kind = "device"


TestSampling = Sampling.TestCase
TestSamplingOnDevice = OnDevice.TestCase
TestSampling.settings = TestSamplingOnDevice.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def running(requests, kind="host"):
    state = make_sampler(kind, max(requests) + 1)
    state.apply(make_plan(starts=[start_of(slot, *request) for slot, request in requests.items()]))
    return state


def first_changed(change, prompt=(1, 2), output=(3, 3, 4)):
    """Logits that a greedy request meets, less those it is shown, for each token; found through the tokens it picks:
    token 0 is the rival whose logit says how far each other token was moved."""
    sampling = SamplingParams(max_tokens=9, **change)
    moved = {}
    for token in range(1, 6):
        for step in range(-40, 41):
            logits = torch.full((1, VOCAB), -100.0)
            logits[0, token], logits[0, 0] = 2.0, 2.0 + step / 8
            request = {0: (list(prompt), list(output), sampling)}
            if sample(running(request), logits, request).token_ids[0] == 0:
                moved[token] = step / 8
                break
    return moved


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"presence_penalty": 1.0}, {1: 0, 2: 0, 3: -1, 4: -1, 5: 0}),
        ({"frequency_penalty": 0.5}, {1: 0, 2: 0, 3: -1, 4: -0.5, 5: 0}),
        ({"repetition_penalty": 2.0}, {1: -1, 2: -1, 3: -1, 4: -1, 5: 0}),
        ({"logit_bias": ((2, 1.5), (5, -2.0))}, {1: 0, 2: 1.5, 3: 0, 4: 0, 5: -2}),
        ({"logit_bias": ((3, 2.0),), "repetition_penalty": 2.0}, {1: -1, 2: -1, 3: 0, 4: -1, 5: 0}),
    ],
)
def test_penalties_and_bias_move_exactly_the_tokens_they_name(change, expected):
    assert first_changed(change) == expected


@given(st.lists(st.tuples(tokens, tokens, samplings), min_size=2, max_size=6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_bias_and_penalties_change_logits_as_the_reference_does_to_the_last_bit(rows, seed):
    requests = {slot: (prompt, list(output), sampling) for slot, (prompt, output, sampling) in enumerate(rows)}
    host, device = running(requests), running(requests, "device")
    slots = torch.arange(len(rows))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        for sampler in (host, device):
            sampler.apply(make_plan(decodes=range(len(rows))))
        logits = torch.randn(len(rows), VOCAB, generator=generator) * 4
        expected = [changed_logits(row, *requests[slot]) for slot, row in enumerate(logits.numpy())]
        assert np.array_equal(gumbel.edit(logits, slots, device._table).numpy(), expected)
        host._edit(logits, slots.numpy(), host._asked)
        assert np.array_equal(logits.numpy(), expected)
        token_ids = torch.randint(0, VOCAB, (len(rows),), generator=generator)
        for state in (host, device):
            state.count(slots, token_ids)
        for slot, token in enumerate(token_ids.tolist()):
            requests[slot][1].append(token)


@given(st.lists(st.tuples(tokens, tokens, samplings), min_size=2, max_size=6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_request_is_sampled_and_reported_alike_alone_and_among_others(kind, rows, seed):
    requests = dict(enumerate(rows))
    logits = logits_of(seed, len(rows)) + torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    together = sample(running(requests, kind), logits, requests)
    reports = {entry.slot: entry for entry in together.logprobs}
    for slot, request in requests.items():
        alone = sample(running({0: request}, kind), logits[slot : slot + 1], {0: request})
        assert alone.token_ids[0] == together.token_ids[slot]
        if alone.logprobs:
            assert replace(alone.logprobs[0], slot=slot) == reports[slot]


def test_rows_that_ask_for_nothing_are_not_touched_to_the_last_bit():
    plain, penalised = SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, repetition_penalty=1.7)
    requests = {slot: ([1, 2], [3, 3], penalised if slot == 2 else plain) for slot in range(5)}
    logits = torch.randn(5, VOCAB)
    given_logits = logits.clone()
    running(requests).choose(logits, torch.arange(5), torch.full((5,), 4))
    others = [0, 1, 3, 4]
    assert torch.equal(logits[others], given_logits[others])
    assert not torch.equal(logits[2], given_logits[2])


def test_requests_that_ask_for_nothing_cost_one_argmax(monkeypatch):
    requests = {slot: ([1, 2], [3], SamplingParams(max_tokens=9, top_p=0.5, top_k=3, seed=5)) for slot in range(3)}
    state = running(requests)
    monkeypatch.setattr(host_sampler, "draw", None)
    state._penalties = state._bias = state._logprobs._num_top = None
    assert sample(state, logits_of(1, 3), requests).token_ids.tolist() == logits_of(1, 3).argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_release_lost_with_a_failed_step_does_not_leak_into_the_next_request(kind):
    heavy = SamplingParams(
        max_tokens=9,
        temperature=1.0,
        presence_penalty=2.0,
        logit_bias=((5, 50.0),),
        seed=3,
        min_tokens=9,
        stop_token_ids=(2,),
        logprobs=2,
    )
    plain = SamplingParams(max_tokens=9)
    state = running({0: ([1], [2, 2], heavy), 1: ([1], [2, 2], heavy)}, kind)
    state.apply(make_plan(starts=[start_of(0, [1], [], plain)]))
    logits = torch.zeros(2, VOCAB)
    logits[:, 2] = 1.0
    # Beside one that still has them: it makes the batch look for biases and penalties.
    output = sample(state, logits, {0: ([1], [], plain), 1: ([1], [2, 2], heavy)})
    assert output.token_ids.tolist() == [2, 5]
    assert [entry.slot for entry in output.logprobs] == [1]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_what_slots_ask_for_is_looked_up_again_when_a_slot_changes_hands(kind):
    plain = SamplingParams(max_tokens=9)
    biased = SamplingParams(max_tokens=9, logit_bias=((5, 50.0),))
    state = running({0: ([1], [], plain), 1: ([1], [], plain)}, kind)
    slots, positions = np.arange(2), np.ones(2, np.int64)
    logits = torch.zeros(2, VOCAB)
    logits[:, 2] = 1.0
    found = []
    for start in (None, start_of(1, [1], [], biased), start_of(1, [1], [], plain)):
        if start is not None:
            state.apply(make_plan(releases=[1], starts=[start]))
        found.append(chosen(state, logits.clone(), slots, positions).token_ids.tolist())  # the same array of slots
    assert found == [[2, 2], [2, 5], [2, 2]]
