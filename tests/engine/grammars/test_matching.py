"""A request's place in its grammar."""

import os
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

from inflight_engine.grammars import compiled
from inflight_engine.grammars import matching as matching_module
from inflight_engine.grammars.compiled import MAX_COMPILED, Compiled, GrammarError, Grammars
from inflight_engine.grammars.matching import Matching
from inflight_engine.grammars.thinking import reasoning_tokens
from inflight_engine.request import SamplingParams
from tests.engine.grammars.ascii import CHARACTERS, EOS, grammars, ids_of, regex, thinking

SHARED = grammars()


def matching(pattern, **sampling):
    grammar = None if pattern is None else regex(pattern)
    sampling = SamplingParams(64, **{"stop_token_ids": (EOS,), **sampling}, grammar=grammar)
    return Matching(None if grammar is None else SHARED.compiled(grammar), sampling, [EOS])


def allowed(each):
    bits = np.empty(4, np.int32)
    each.fill(bits)
    tokens = np.flatnonzero(np.unpackbits(bits.view(np.uint8), count=EOS + 1, bitorder="little"))
    return {"EOS" if token == EOS else CHARACTERS[token] for token in tokens.tolist()}


def take(each, text):
    for token_id in ids_of(text):
        each.take(token_id)


def test_only_tokens_that_continue_the_text_are_allowed():
    each = matching("ab|ac?")
    assert allowed(each) == {"a"}
    take(each, "a")
    assert allowed(each) == {"b", "c", "EOS"}
    take(each, "b")
    assert each.complete
    assert not each.error


def test_the_text_is_complete_when_only_its_end_can_follow():
    each = matching("ab*")
    take(each, "abb")
    assert not each.complete
    each.take(EOS)
    assert each.complete


EVERYTHING = {*CHARACTERS, "EOS"}


def test_thinking_that_the_prompt_opened_is_free_but_for_the_end_of_the_answer():
    each = matching("x", thinking=thinking(begun=True))
    for character in "ab</t<</t":
        assert allowed(each) == {*CHARACTERS}
        take(each, character)
        assert not each.complete
    take(each, ">")
    assert allowed(each) == {"x"}


def test_an_answer_begins_with_thinking_or_with_the_text_of_its_grammar():
    each = matching("<?x", thinking=thinking())
    for character, expected in [("<", {"<", "x"}), ("t", {"t", "x"}), (">", {">"})]:
        assert allowed(each) == expected
        take(each, character)
    assert allowed(each) == {*CHARACTERS}
    take(each, "x</t>")
    assert allowed(each) == {"<", "x"}
    take(each, "<")
    assert allowed(each) == {"x"}
    take(each, "x")
    assert each.complete


@pytest.mark.parametrize("text", ["x", "<x"])
def test_an_answer_without_thinking_follows_its_grammar(text):
    each = matching("<?xy", thinking=thinking())
    take(each, text)
    assert allowed(each) == {"y"}
    take(each, "y")
    assert each.complete


def test_tokens_that_neither_open_thinking_nor_follow_the_grammar_are_an_error():
    each = matching("a+", thinking=thinking())
    take(each, "<t")
    assert not each.error
    take(each, "a")
    assert each.error


def test_tokens_between_thinking_and_the_grammar_are_forced():
    each = matching("x", thinking=thinking(begun=True, then=tuple(ids_of("ab"))))
    take(each, "</t>")
    for character in "abx":
        assert allowed(each) == {character}
        take(each, character)
    assert each.complete


@pytest.mark.parametrize("pattern", [None, "x"])
@pytest.mark.parametrize(("budget", "written", "forced"), [(0, "", "</t>"), (2, "ab", "</t>"), (3, "a</", "t>")])
def test_after_the_budget_of_thinking_its_end_is_forced(pattern, budget, written, forced):
    each = matching(pattern, thinking=thinking(begun=True, budget=budget))
    for character in written:
        assert each.free == (pattern is None)
        assert len(allowed(each)) > 1
        take(each, character)
    for character in forced:
        assert not each.free
        assert allowed(each) == {character}
        take(each, character)
    assert allowed(each) == (EVERYTHING if pattern is None else {"x"})


def test_without_a_grammar_thinking_is_bounded_wherever_it_begins_and_in_all():
    each = matching(None, thinking=thinking(budget=3))
    take(each, "\n<t>ab</t>abcdef<t>")
    assert each.free
    take(each, "a")
    assert allowed(each) == {"<"}


@given(st.lists(st.sampled_from(["<t>", "</t>", "<", "t", "a"]), max_size=12), st.booleans(), st.integers(0, 4))
def test_a_bound_of_thinking_holds_whatever_is_sampled(parts, begun, budget):
    how = thinking(begun=begun, budget=budget)
    each, taken = matching(None, thinking=how), []
    for token_id in ids_of("".join(parts)):
        if not each.free:
            (forced,) = allowed(each)
            token_id = ids_of(forced)[0]
        taken.append(token_id)
        each.take(token_id)
    assert reasoning_tokens(taken, how) <= budget + len(how.close) - 1  # a mark may be incomplete
    replayed = matching(None, thinking=how)
    for token_id in taken:
        replayed.take(token_id)
    assert allowed(replayed) == allowed(each)


@pytest.mark.parametrize(
    ("text", "begun", "count"),
    [("abc", False, 0), ("abc", True, 3), ("ab</t>c", True, 2), ("<t>ab</t>c<t>d", False, 3), ("a<t><</t>", False, 1)],
)
def test_tokens_of_reasoning_are_those_between_its_marks(text, begun, count):
    assert reasoning_tokens(ids_of(text), thinking(begun=begun)) == count


def test_the_end_is_withheld_before_min_tokens():
    each = matching("a*", min_tokens=2)
    for _ in range(2):
        assert allowed(each) == {"a"}
        take(each, "a")
    assert allowed(each) == {"a", "EOS"}


def test_before_min_tokens_thinking_ends_with_a_stop_token_only_where_its_budget_forces_it():
    how = {"thinking": thinking(begun=True, budget=1), "stop_token_ids": (EOS, *ids_of(">")), "min_tokens": 9}
    each = matching(None, **how)
    assert allowed(each) == {*CHARACTERS} - {">"}
    take(each, "a")
    for character in "</t>":
        assert allowed(each) == {character}
        take(each, character)
    for _ in range(4):
        assert not each.free
        assert allowed(each) == {*CHARACTERS} - {">"}
        take(each, "b")
    assert each.free


def test_before_min_tokens_a_text_still_ends_where_only_its_end_can_follow():
    assert allowed(matching("", min_tokens=2)) == {"EOS"}
    each = matching("a", min_tokens=2)
    take(each, "a")
    assert each.complete


def test_an_end_of_sequence_token_that_does_not_end_the_request_is_withheld_while_others_can_follow():
    each = matching("a*", stop_token_ids=())
    assert allowed(each) == {"a"}
    assert allowed(matching("", stop_token_ids=())) == {"EOS"}


def test_a_stop_token_of_the_request_is_withheld_before_min_tokens():
    each = matching("[ab]*", min_tokens=1, stop_token_ids=(EOS, *ids_of("b")))
    assert allowed(each) == {"a"}
    take(each, "a")
    assert allowed(each) == {"a", "b", "EOS"}


def test_a_token_outside_the_grammar_is_an_error():
    each = matching("a+")
    take(each, "ab")
    assert "b" in each.error
    assert not each.complete


def test_a_grammar_that_cannot_be_compiled_is_refused_with_the_reason():
    with pytest.raises(GrammarError, match="unclosed"):
        SHARED.compiled(regex("[a"))


def test_matchers_of_a_grammar_do_not_share_their_place():
    one, other = matching("ab"), matching("ab")
    take(one, "a")
    assert (allowed(one), allowed(other)) == ({"b"}, {"a"})


MANY_STATES = "[ab]*a[ab]{20}c|[ab]*defg"
"""The lexer has another state for each text of 20 characters, of which a mask takes all that can follow."""

TEXT = "".join(random.Random(1).choices("ab", k=400))
UNBOUNDED = grammars().compiled(regex(MANY_STATES))


def begin(shared, pattern=MANY_STATES):
    sampling = SamplingParams(len(TEXT), stop_token_ids=(EOS,), grammar=regex(pattern))
    return Matching(shared if isinstance(shared, Compiled) else shared.compiled(sampling.grammar), sampling, [EOS])


def write(each, length):
    """Writes the next characters of TEXT until an error; returns their number."""
    begun = each._num_taken
    for number, character in enumerate(TEXT[begun : begun + length]):
        found = allowed(each)
        if each.error:
            return number
        assert found - {"c"} == {"a", "b", "d"}
        take(each, character)
    return length


@pytest.fixture
def few(monkeypatch):
    """Grammars with states for some 60 tokens of TEXT."""
    monkeypatch.setattr(compiled, "LIMITS", LLParserLimits(max_lexer_states=120))
    return grammars()


def test_an_answer_that_fills_the_states_of_a_grammar_ends_no_other_one(few):
    one, other, third = (begin(few) for _ in range(3))
    assert (write(other, 5), write(third, 2)) == (5, 2)
    assert write(one, 400) < 120
    assert "too many states" in one.error
    for each in (other, third, begin(few)):
        assert write(each, 20) == 20
        take(each, "defg")
        assert (each.error, each.complete) == ("", True)


@pytest.mark.parametrize("limit", [{"max_lexer_states": 120}, {"step_lexer_fuel": 200}])
def test_an_answer_that_makes_the_lexer_fail_ends_no_other_one(limit, monkeypatch):
    monkeypatch.setattr(compiled, "LIMITS", LLParserLimits(**limit))
    shared = grammars()
    other = begin(shared)
    assert write(other, 3) == 3
    broken = shared.compiled(regex(MANY_STATES)).states().matcher()
    for token_id in ids_of(TEXT):
        broken.compute_bitmask()
        broken.consume_token(token_id)
    assert broken.is_error()
    assert write(other, 5) == 5
    assert not other.error


def test_an_answer_goes_on_beyond_the_states_of_its_grammar_with_the_same_masks(few):
    each, more = begin(few), begin(UNBOUNDED)
    for character in TEXT[:85]:
        assert allowed(each) == allowed(more)
        take(each, character)
        take(more, character)
    assert each._renewed > 0
    assert not each.error


def test_the_time_of_new_states_is_bounded(few, monkeypatch):
    each = begin(few)
    assert write(each, 50) == 50
    now = iter(range(0, 10**6, 10))
    monkeypatch.setattr(Matching, "_mask", lambda self, bits: self._matcher.compute_bitmask())
    monkeypatch.setattr(time, "thread_time", lambda: next(now))
    assert write(each, 60) < 30
    assert "too much time" in each.error


def test_forced_tokens_are_found_and_taken_where_the_states_are_full(few):
    one, each = begin(few), begin(few)
    assert write(each, 3) == 3
    assert write(one, 400) < 120
    assert "d" in allowed(each)
    take(each, "d")
    assert each.forced() == (ids_of("efg"), True)
    place = each.after(ids_of(TEXT[:3] + "defg"))
    assert (place.complete, place.error, each.complete) == (True, "", False)


def test_a_text_is_replayed_with_fewer_states_than_its_masks_took(few):
    each = begin(few)
    take(each, TEXT[:85])
    assert {"a", "b"} < allowed(each)


def test_answers_of_an_ordinary_grammar_do_not_ask_whether_its_states_are_full(monkeypatch):
    monkeypatch.setattr(compiled, "LOOK", 60.0)
    monkeypatch.setattr(matching_module, "LOOK", 60.0)
    shared = grammars()
    monkeypatch.setattr(compiled.States, "full", property(lambda self: pytest.fail("asked")))
    for _ in range(3):
        each = begin(shared, "[ab]{30}")
        for character in TEXT[:30]:
            assert allowed(each) == {"a", "b"}
            take(each, character)
        assert each.complete


def test_new_answers_get_new_states_once_those_of_others_are_full(few):
    one = few.compiled(regex(MANY_STATES))
    first = one.states()
    assert write(begin(one), 400) < 120
    assert one.states() is not first
    assert one.states() is one.states()


def test_the_expressions_of_states_are_in_the_errors_of_llguidance(monkeypatch):
    states = SHARED.compiled(regex("[ab]{30}")).states()
    assert not states.full
    monkeypatch.setattr(compiled, "MAX_EXPRESSIONS", 0)
    assert states.full


LARGE_STATES = "|".join(f"[ab]{{{4000 + number},9000}}X{number}" for number in range(40))
"""Each state has 40 expressions and what they are made of."""


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_answers_is_bounded(monkeypatch):
    """Without the bound each has 36 MB after 1,000 tokens."""
    monkeypatch.setattr(compiled, "MAX_EXPRESSIONS", 50_000)
    monkeypatch.setattr(compiled, "LOOK", 0.002)
    monkeypatch.setattr(matching_module, "LOOK", 0.002)
    answers = [begin(grammars(), f"{LARGE_STATES}|[ab]{{4000,9000}}Y{number}") for number in range(8)]
    begun = most = resident()
    for each in answers:
        for character in TEXT:
            if allowed(each) == {"a", "b"}:
                take(each, character)
        most = max(most, resident())
    assert {each.error for each in answers} == {"the text so far takes too many states of the grammar"}
    assert most - begun < 8 * 5e6


def test_the_states_of_many_answers_are_bounded_together_and_those_of_one_have_more(monkeypatch):
    monkeypatch.setattr(compiled, "LOOK", 0.0)
    monkeypatch.setattr(matching_module, "LOOK", 0.0)
    monkeypatch.setattr(compiled, "LARGE", 1000)
    monkeypatch.setattr(compiled, "MAX_ALL", 20_000)
    shared = grammars()

    def most(count):
        answers = [begin(shared, f"[ab]{{40,90}}X{number}|{MANY_STATES}") for number in range(count)]
        found = 0
        for character in TEXT[:100]:
            for each in answers:
                if not each.error and allowed(each):
                    take(each, character)
            found = max(found, sum(each._states.expressions or 0 for each in answers))
        return found / count

    alone = most(1)
    assert 10_000 < alone < 25_000
    assert most(4) < alone / 2


def test_of_many_grammars_the_latest_and_those_of_requests_stay_compiled():
    many = grammars()
    kept = many.compiled(regex("a{2}"))
    for number in range(MAX_COMPILED + 3):
        many.compiled(regex(f"b{{{number + 1}}}"))
        many.compiled(regex("a{1}"))
    assert len(many._compiled) == MAX_COMPILED + 1
    assert many.compiled(regex("a{2}")) is kept
    assert regex("a{1}") in many._compiled
    assert regex("b{1}") not in many._compiled


def test_an_answer_whose_masks_take_long_ends_with_an_error(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: next(now))
    each = matching("a*")
    assert not each.error
    assert allowed(each) == EVERYTHING
    assert "too much time" in each.error


CONTRACTED = [*CHARACTERS, "'s"]


def contracting():
    """A vocabulary that joins "'s" unless "xy" is right before it, and takes "<eos>" for the end of the text."""

    def encode(_, text):
        pieces = re.findall(r"xy's|<eos>|'s|.", text.decode())
        ids = [[EOS + 1] if each == "<eos>" else map(CONTRACTED.index, split(each)) for each in pieces]
        return [token_id for each in ids for token_id in each]

    def split(piece):
        return [piece] if piece == "'s" else piece

    tokens = [each.encode() for each in CONTRACTED] + [b"<eos>"]
    wrapped = {"eos_token_id": EOS + 1, "bos_token_id": None, "tokens": tokens, "special_token_ids": [EOS + 1]}
    return Grammars(lambda: LLTokenizer(TokenizerWrapper(type("Encoder", (), {**wrapped, "__call__": encode})())))


def place_in(vocabulary, pattern, token_ids):
    sampling = SamplingParams(64, grammar=regex(pattern))
    each = Matching(vocabulary.compiled(sampling.grammar), sampling, [EOS + 1])
    for token_id in token_ids:
        each.take(token_id)
    return each


def test_a_run_that_must_follow_is_the_same_from_each_of_its_tokens():
    vocabulary = contracting()
    (start,) = ids_of("1")
    run, ends = place_in(vocabulary, "[0-9]xy'sab", [start]).forced()
    assert (run, ends) == (ids_of("xy'sab"), True)
    for cut, token_id in enumerate(run):
        place = place_in(vocabulary, "[0-9]xy'sab", [start, *run[:cut]])
        bits = np.empty(4, np.int32)
        place.fill(bits)
        assert np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist() == [token_id]
        assert place.forced() == (run[cut:], True)


@pytest.mark.parametrize(
    "pattern", ["a*b?", "[ab]{1,9}|it's[0-9]+", "[0-9]xy'sab|[0-9]x[a-z]*", "(a|bc|'s){3}", "[0-9]ab<eos>cd"]
)
def test_tokens_known_without_a_mask_are_those_of_the_mask(pattern):
    vocabulary, rng = contracting(), random.Random(0)
    for _ in range(20):
        each = place_in(vocabulary, pattern, [])
        for number in range(12):
            bits = np.empty(4, np.int32)
            known = {token_id for token_id in range(EOS + 2) if each.allows(token_id)}
            each.fill(bits)
            found = np.flatnonzero(np.unpackbits(bits.view(np.uint8), count=EOS + 2, bitorder="little")).tolist()
            assert known <= set(found)
            assert number == 0 or known >= set(found) - {EOS + 1} or "eos" in pattern
            if not found or each.complete:
                break
            each.take(rng.choice(found))


def test_no_token_that_the_grammar_does_not_take_must_follow():
    run, ends = place_in(contracting(), "[0-9]ab<eos>cd", ids_of("1")).forced()
    assert (run, ends) == (ids_of("ab"), False)


def test_a_long_run_comes_in_parts_that_end_with_the_last():
    pattern, parts = f"[0-9]{'ab' * 300}", []
    each = matching(pattern)
    take(each, "1")
    while not each.complete:
        run, ends = each.forced()
        parts.append((len(run), ends))
        each = each.after(ids_of("1" + "ab" * 300)[: 1 + sum(length for length, _ in parts)])
    assert parts == [(256, False), (256, False), (88, True)]
