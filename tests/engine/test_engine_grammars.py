"""Requests with a grammar in the engine: compiled while they wait, ended with their text, continued and recorded."""

import random
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflight_engine.engine import Engine
from inflight_engine.grammars.matching import Matching
from inflight_engine.grammars.waiting import CompilingRequests
from inflight_engine.messages import AddRequest, CancelRequest, Finished
from inflight_engine.native import sample as native
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.recorder import Recorder
from inflight_engine.recording.replay import Survey, replay
from inflight_engine.request import FinishReason, SamplingParams, token_mask
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits
from tests.engine.execution.tiny_model import make_model, prompts_for, tiny_runner
from tests.engine.grammars.ascii import EOS, grammars, ids_of, regex, text_of, thinking

PROMPT = prompts_for(random.Random(4))[4]
NUMBER = r"\{\"a\": [0-9]{2,9}\}"


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "ahead"])
def runner(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    shared = grammars()
    runner = tiny_runner(folder, lookahead=request.param, grammars=shared, max_num_seqs=4, num_kv_blocks=64)
    return runner, shared


class Held:
    """An engine whose compiler's end can be waited for."""

    def __init__(self, runner, record=None, num_blocks=64):
        runner, shared = runner
        config = SchedulerConfig(Limits(4, 64), num_blocks=num_blocks, block_size=4, max_model_len=128)
        scheduler = Scheduler(config)
        recorder = None if record is None else Recorder.to_file(str(record), config, scheduler.is_cached)
        self.woken = threading.Event()
        self.engine = Engine(scheduler, runner, recorder=recorder, compiling=CompilingRequests(shared, self.woken.set))

    def add(self, request_id, pattern, output=(), **sampling):
        grammar = None if pattern is None else regex(pattern)
        sampling = SamplingParams(**{"max_tokens": 24, "stop_token_ids": (EOS,)} | sampling, grammar=grammar)
        prompt, output = (np.array(each, np.int32).tobytes() for each in (PROMPT, output))
        self.woken.clear()
        self.engine.handle(AddRequest(request_id, prompt, sampling, 0.0, output_token_ids=output))

    def run(self):
        """Tokens of each request, and the ends."""
        found, owners, ends = {}, {}, {}
        while self.engine.has_work:
            report = self.engine.step()
            owners |= {admission.slot: admission.request_id for admission in report.admitted}
            slots, token_ids = (np.frombuffer(each, np.int32).tolist() for each in (report.slots, report.token_ids))
            for slot, token_id in zip(slots, token_ids, strict=True):
                found.setdefault(owners[slot], []).append(token_id)
            ends |= {each.request_id: each for each in report.finished}
        return found, ends


def answer(runner, pattern, output=(), **sampling):
    held = Held(runner)
    held.add(0, pattern, output, **sampling)
    assert held.woken.wait(60)
    found, ends = held.run()
    return found.get(0, []), ends[0]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_request_ends_as_stop_with_the_token_that_completes_its_text(runner, temperature):
    tokens, end = answer(runner, NUMBER, temperature=temperature, seed=3)
    assert end == Finished(0, FinishReason.STOP)
    assert EOS not in tokens
    assert text_of(tokens).endswith("}")


def test_a_text_of_which_more_could_follow_ends_with_the_token_for_it(runner):
    tokens, end = answer(runner, "(xy)?", logit_bias=((EOS, 100.0),))
    assert (tokens, end.reason) == ([EOS], FinishReason.STOP)


def test_a_text_is_not_complete_at_max_tokens(runner):
    tokens, end = answer(runner, "[a-z]{30}", max_tokens=7)
    assert (len(tokens), end.reason) == (7, FinishReason.LENGTH)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("begun", [None, False, True])
def test_a_request_continued_at_any_token_has_the_same_text(runner, temperature, begun):
    how = {"temperature": temperature, "seed": 3, "max_tokens": 40}
    if begun is not None:  # the bias opens the thinking where it may be opened
        bias = ((ids_of("<")[0], 50.0), (ids_of("/")[0], -100.0))
        how |= {"thinking": thinking(begun=begun, budget=5, then=tuple(ids_of("!"))), "logit_bias": bias}
    tokens, _ = answer(runner, NUMBER, **how)
    opened = {None: "", False: "<t>", True: ""}[begun]
    assert text_of(tokens).startswith(opened)
    assert begun is None or text_of(tokens).index("</t>!{") in (len(opened) + 4, len(opened) + 5)
    for cut in range(1, len(tokens) + 1):
        rest, end = answer(runner, NUMBER, tokens[:cut], **how)
        assert tokens[:cut] + rest == tokens
        assert end == Finished(0, FinishReason.STOP)


def test_a_request_continued_with_tokens_of_another_text_is_refused(runner):
    _, end = answer(runner, NUMBER, ids_of("x"))
    assert end.reason is FinishReason.ERROR
    assert "x" in end.refusal


def test_a_grammar_that_cannot_be_compiled_ends_its_request_only(runner):
    held = Held(runner)
    held.add(1, None, max_tokens=3)
    held.add(2, "[a")
    assert held.woken.wait(60)
    found, ends = held.run()
    assert len(found[1]) == 3
    assert 2 not in found
    assert ends[2].reason is FinishReason.ERROR
    assert "unclosed character class" in ends[2].refusal


NOTHING_LEFT = {
    "rules of tokens": {"bad_words": (tuple(ids_of("a")),), "allowed_tokens": token_mask(ids_of("a"))},
    "minimum": {"allowed_tokens": token_mask([EOS]), "min_tokens": 2},
    "grammar and allowed tokens": {"pattern": "[a-c]+", "allowed_tokens": token_mask(ids_of("xyz"))},
    "grammar and banned tokens": {"pattern": "ab", "bad_words": (tuple(ids_of("b")),)},
    "all": {"pattern": "ab?", "bad_words": (tuple(ids_of("ab")),), "allowed_tokens": token_mask(ids_of("ab"))},
    "thinking": {"thinking": thinking(begun=True, budget=1), "allowed_tokens": token_mask(ids_of("a"))},
}


@pytest.mark.parametrize("left", NOTHING_LEFT)
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 1.0, "top_p": 0.6, "top_k": 5, "seed": 7}], ids=["greedy", "drawn"]
)
@pytest.mark.parametrize("way", ["kernels", "torch"])
def test_a_request_with_no_token_left_ends_with_the_reason_and_others_have_their_tokens(
    runner, left, how, way, monkeypatch
):
    if way == "torch":
        monkeypatch.setattr(native, "can_sample", lambda logits: False)
    expected, _ = answer(runner, "[a-z]{9}", **how)
    held = Held(runner)
    held.add(1, "[a-z]{9}", **how)
    assert held.woken.wait(60)
    bound = {"pattern": None, **NOTHING_LEFT[left]}
    held.add(2, bound.pop("pattern"), **bound, **how)
    assert "pattern" not in NOTHING_LEFT[left] or held.woken.wait(60)
    found, ends = held.run()
    assert found[1] == expected
    assert ends[2].reason is FinishReason.ERROR
    assert "leave no token" in ends[2].refusal


def test_others_go_on_while_a_grammar_is_compiled(runner):
    compiling = threading.Event()
    runner, shared = runner

    class Slow:
        def compiled(self, text):
            assert compiling.wait(60)
            return shared.compiled(text)

    held = Held((runner, Slow()))
    held.add(1, NUMBER)
    held.add(2, None, max_tokens=3)
    found, ends = held.run()
    assert (len(found[2]), list(ends)) == (3, [2])
    compiling.set()
    assert held.woken.wait(60)
    _, ends = held.run()
    assert ends[1].reason is FinishReason.STOP


def test_what_a_request_needs_stays_compiled_until_its_end(runner):
    runner, shared = runner
    held, pattern = Held((runner, shared)), "[0-9]{3}-[a-z]{3,4}"
    held.add(1, pattern)
    assert held.woken.wait(60)
    shared._latest.clear()
    assert regex(pattern) in shared._compiled
    held.run()
    shared._latest.clear()
    assert regex(pattern) not in shared._compiled


def test_a_request_can_be_cancelled_while_its_grammar_is_compiled(runner):
    held = Held(runner)
    held.add(1, NUMBER)
    held.engine.handle(CancelRequest(1, FinishReason.ABORT))
    assert held.woken.wait(60)
    assert held.run() == ({}, {1: Finished(1, FinishReason.ABORT)})


def test_a_recording_replays(runner, tmp_path):
    held = Held(runner, tmp_path / "record")
    for request_id, pattern in enumerate([NUMBER, None, "yes|no", "[a-c]*"]):
        held.add(request_id, pattern)
        assert pattern is None or held.woken.wait(60)
    held.run()
    held.engine.close()
    recording = Recording(tmp_path / "record")
    assert replay(recording.header.config, recording.events(), Survey(recording.events())) is None


def forced_off(patch):
    patch.setattr(Matching, "forced", lambda place: ([], False))


class Asked(NamedTuple):
    pattern: str
    output: tuple[int, ...] = ()
    sampling: Mapping[str, Any] = MappingProxyType({})


def answers(runner, asked, record=None, num_blocks=64):
    """Tokens and ends of requests that run together, and their scheduler."""
    held = Held(runner, record, num_blocks)
    for request_id, each in enumerate(asked):
        held.add(request_id, each.pattern, each.output, **each.sampling)
        assert held.woken.wait(10)
    found, ends = held.run()
    held.engine.close()
    return found, ends, held.engine._scheduler


WORDS = st.text("abc", min_size=1, max_size=9)
PARTS = st.recursive(
    WORDS | st.sampled_from(["[0-9]", "[a-c]{1,4}", "(yes|no)", "x*"]),
    lambda parts: (
        st.lists(parts, min_size=1, max_size=3).map("".join) | st.tuples(parts, parts).map("({0[0]}|{0[1]})".format)
    ),
    max_leaves=8,
)
SAMPLING = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 30), "seed": st.integers(0, 9), "temperature": st.sampled_from([0.0, 1.0])},
    optional={
        "stop_token_ids": st.sampled_from([(EOS, *ids_of("b")), ()]),
        "min_tokens": st.integers(0, 4),
        "presence_penalty": st.just(0.7),
        "repetition_penalty": st.just(1.5),
        "bad_words": st.just((tuple(ids_of("aa")),)),
        "logprobs": st.just(2),
        "thinking": st.just(thinking(begun=True, budget=3, then=tuple(ids_of("!")))),
    },
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_tokens_that_must_follow_are_taken_at_once_and_answers_are_the_same(runner, data, tmp_path_factory):
    asked = data.draw(st.lists(st.builds(Asked, PARTS, output=st.just(()), sampling=SAMPLING), min_size=1, max_size=5))
    with pytest.MonkeyPatch.context() as patch:
        forced_off(patch)
        one_by_one, ends, slow = answers(runner, asked)
    record = tmp_path_factory.mktemp("record") / "record"
    at_once, same_ends, fast = answers(runner, asked, record)
    assert (at_once, same_ends) == (one_by_one, ends)
    assert fast.num_steps <= slow.num_steps + fast.num_forced_tokens
    recording = Recording(record)
    assert replay(recording.header.config, recording.events(), Survey(recording.events())) is None
    # Continued with some of its tokens, as after a restart, each ends the same.
    whole = {number: tokens for number, tokens in one_by_one.items() if ends[number].reason is not FinishReason.ERROR}
    cuts = {number: data.draw(st.integers(0, len(tokens) - 1)) for number, tokens in whole.items()}
    again = [asked[number]._replace(output=tuple(whole[number][: cuts[number]])) for number in sorted(cuts)]
    rest, _, _ = answers(runner, again)
    assert {
        number: [*whole[number][:cut], *rest[place]] for place, (number, cut) in enumerate(sorted(cuts.items()))
    } == whole


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preempted_requests_have_the_answers_that_they_have_alone(runner, temperature):
    patterns = ["[a-z]{40}", "(yes, |no, ){12}!", "[0-9]{2}abcdefgh[a-c]{30}", NUMBER]
    asked = [
        Asked(pattern, sampling={"max_tokens": 60, "temperature": temperature, "seed": seed})
        for seed, pattern in enumerate(patterns)
    ]
    alone = [answer(runner, each.pattern, **each.sampling) for each in asked]
    together, ends, scheduler = answers(runner, asked, num_blocks=26)
    assert scheduler.preemptor.num_preemptions > 0, "the pool must be small enough to preempt"
    assert [(together[number], ends[number].reason) for number in range(4)] == [(own, end.reason) for own, end in alone]


def test_a_forced_run_saves_its_steps(runner, monkeypatch):
    asked = [Asked("[0-9]abcdefghij[0-9]klmnop")]
    at_once, ends, fast = answers(runner, asked)
    forced_off(monkeypatch)
    one_by_one, same_ends, slow = answers(runner, asked)
    assert (at_once, ends) == (one_by_one, same_ends)
    assert len(at_once[0]) == 18
    assert fast.num_forced_tokens == 16
    # The last run ends the text, so nothing is left to compute; ahead, a step is under way when the first is known.
    assert slow.num_steps - fast.num_steps in (15, 16)


@pytest.mark.parametrize("sampling", [{"logprobs": 0}, {"bad_words": (tuple(ids_of("q")),)}], ids=["logprobs", "rules"])
def test_tokens_with_log_probabilities_or_rules_of_tokens_are_sampled(runner, sampling):
    _, _, scheduler = answers(runner, [Asked("[0-9]abcdef", sampling=sampling)])
    assert scheduler.num_forced_tokens == 0


def test_forced_tokens_end_with_max_tokens_or_before_a_token_that_stops(runner):
    found, ends, _ = answers(runner, [Asked("[0-9]abcdefgh", sampling={"max_tokens": 5})])
    assert (text_of(found[0])[1:], ends[0].reason) == ("abcd", FinishReason.LENGTH)
    found, ends, _ = answers(runner, [Asked("[0-9]abcdefgh", sampling={"stop_token_ids": tuple(ids_of("e"))})])
    assert (text_of(found[0])[1:], ends[0].reason) == ("abcde", FinishReason.STOP)
