"""Rules of tokens leave exactly the tokens that a plain reading of them leaves, wherever an answer is taken up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.execution.sampling.token_rules import TokenRules
from inflight_engine.grammars.matching import Matching
from inflight_engine.request import SamplingParams, token_mask
from tests.engine.grammars.ascii import EOS, grammars, ids_of, regex

VOCAB = 70
TOKENS = st.integers(0, 4)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), max_size=5).map(tuple)


def allowed_by(rules, size=VOCAB):
    bits = np.empty(-(-size // 32), np.int32)
    rules.fill(bits)
    return {i for i in range(size) if int(bits[i // 32]) >> (i % 32) & 1}


def read_plainly(sampling, allowed, output):
    """The tokens that may follow `output`."""
    left = set(allowed or range(VOCAB))
    for *beginning, last in sampling.bad_words:
        if output[len(output) - len(beginning) :] == beginning:
            left.discard(last)
    return left - set(sampling.stop_token_ids if len(output) < sampling.min_tokens else ())


@given(
    WORDS,
    st.lists(st.one_of(TOKENS, st.integers(60, VOCAB - 1)), max_size=6, unique=True).map(tuple),
    st.lists(TOKENS, max_size=12),
    st.integers(0, 3),
)
def test_tokens_left_are_those_of_a_plain_reading(words, allowed, output, min_tokens):
    if not (words or allowed):
        return
    mask = token_mask(allowed) if allowed else b""
    sampling = SamplingParams(20, min_tokens=min_tokens, stop_token_ids=(3,), bad_words=words, allowed_tokens=mask)
    rules = TokenRules(sampling, None)
    for length in range(len(output) + 1):
        if length:
            rules.take(output[length - 1])
        assert allowed_by(rules) == read_plainly(sampling, allowed, output[:length])
        if rules.error:
            assert not read_plainly(sampling, allowed, output[:length])
            return


def test_an_answer_without_any_token_left_ends_with_the_reason():
    rules = TokenRules(SamplingParams(9, bad_words=((3, 5),), allowed_tokens=token_mask((5, 3))), None)
    assert (allowed_by(rules), rules.error) == ({3, 5}, "")
    rules.take(3)
    assert (allowed_by(rules), rules.error) == ({3}, "")
    rules = TokenRules(SamplingParams(9, bad_words=((5,),), allowed_tokens=token_mask((5,))), None)
    assert allowed_by(rules) == set()
    assert "allowed_token_ids" in rules.error


@pytest.mark.parametrize(
    ("rules", "left"),
    [({"allowed_tokens": token_mask(ids_of("abz"))}, "ab"), ({"bad_words": (tuple(ids_of("b")),)}, "acd")],
)
def test_a_grammar_and_rules_leave_the_tokens_that_both_allow(rules, left):
    sampling = SamplingParams(9, stop_token_ids=(EOS,), grammar=regex("[a-d]{3}"), **rules)
    shared = grammars()
    both = TokenRules(sampling, Matching(shared.compiled(sampling.grammar), sampling, (EOS,)))
    assert allowed_by(both, shared.vocabulary.vocab_size) == set(ids_of(left))
    for token in ids_of("aaa"):
        both.take(token)
    assert both.complete
