"""A request's place in its grammar."""

import numpy as np
import pytest

from inflight_engine.grammars.compiled import MAX_COMPILED, GrammarError
from inflight_engine.grammars.matching import Matching
from inflight_engine.request import SamplingParams
from tests.engine.grammars.ascii import CHARACTERS, EOS, grammars, ids_of, regex

SHARED = grammars()


def matching(pattern, *, after="", **sampling):
    grammar = regex(pattern, after)
    sampling = SamplingParams(64, **{"stop_token_ids": (EOS,), **sampling}, grammar=grammar)
    return Matching(SHARED.matcher(grammar.text), sampling, [EOS])


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


def test_before_the_tokens_that_turn_it_on_everything_is_allowed():
    each = matching("x", after="</t>")
    everything = {*CHARACTERS, "EOS"}
    for character in "ab</t<</t":
        assert allowed(each) == everything
        take(each, character)
        assert not each.complete
    take(each, ">")
    assert allowed(each) == {"x"}


def test_the_end_is_withheld_before_min_tokens():
    each = matching("a*", min_tokens=2)
    for _ in range(2):
        assert allowed(each) == {"a"}
        take(each, "a")
    assert allowed(each) == {"a", "EOS"}


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
        SHARED.matcher(regex("[a").text)


def test_matchers_of_a_grammar_do_not_share_their_place():
    one, other = matching("ab"), matching("ab")
    take(one, "a")
    assert (allowed(one), allowed(other)) == ({"b"}, {"a"})


def test_of_many_grammars_the_latest_stay_compiled():
    compiled = grammars()
    for number in range(MAX_COMPILED + 3):
        compiled.matcher(regex(f"a{{{number + 1}}}").text)
        compiled.matcher(regex("a{1}").text)
    assert len(compiled._compiled) == MAX_COMPILED
    assert regex("a{1}").text in compiled._compiled
    assert regex("a{2}").text not in compiled._compiled
