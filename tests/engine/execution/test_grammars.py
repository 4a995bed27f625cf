"""Runners sample texts of their grammars and rules of tokens, the same ones in whatever company, graphs and step ahead
included."""

import random

import numpy as np
import pytest
import torch

from inflight_engine.execution.sampling.grammar_masks import mask_rows
from inflight_engine.request import SamplingParams, token_mask
from tests.engine.execution.driver import Driver
from tests.engine.execution.padded_backend import PaddedBackend
from tests.engine.execution.test_graphs import Recorded
from tests.engine.execution.tiny_model import SWAP_SPACE, make_model, prompts_for, tiny_runner
from tests.engine.grammars.ascii import EOS, grammars, ids_of, regex, text_of, thinking

OPTIONS = {"max_num_seqs": 11, "max_model_len": 128, "num_kv_blocks": 512, "swap_space": SWAP_SPACE}
SHARED = grammars()
PATTERNS = [
    r"\{\"a\": [0-9]{2,9}\}",
    "[a-c]{4,30}",
    "(yes|no)",
    None,
    "x[a-z]{3}(, x[a-z]{3})*",
    None,
    "[^q]{9}",
    "k*",
    "[0-9]{2}",
    None,
]

THINKING = {8: thinking(begun=True, budget=6), 9: thinking(begun=True, budget=4)}
MIN_TOKENS = {5: 6, 7: 4, 9: 16}
RULES = {
    1: {"bad_words": (tuple(ids_of("ab")), tuple(ids_of("c")))},
    3: {"allowed_tokens": token_mask(ids_of("ilmno"))},
    5: {
        "bad_words": tuple((a, b) for a in range(EOS) for b in range(0, EOS, 2)),
        "allowed_tokens": token_mask(range(40)),
    },
}


def sampling_of(number, pattern):
    return SamplingParams(
        20,
        temperature=number % 2 * 0.9,
        top_p=0.8 if number % 3 else 1.0,
        seed=number,
        presence_penalty=0.5 if number % 4 == 0 else 0.0,
        stop_token_ids=(EOS, *ids_of(" ")) if pattern is None else (EOS,),
        min_tokens=MIN_TOKENS.get(number, 0),
        logprobs=1 if number == 4 else None,
        grammar=None if pattern is None else regex(pattern),
        thinking=THINKING.get(number),
        **RULES.get(number, {}),
    )


def to_end(token_ids):
    """Tokens to the end of the text: the driver takes in those of a step ahead too."""
    return token_ids[: token_ids.index(EOS) + 1] if EOS in token_ids else token_ids


def test_before_min_tokens_nothing_ends_an_answer(expected):
    for number, least in MIN_TOKENS.items():
        assert not {EOS, *ids_of(" ")}.intersection(expected[number][:least]), number


SAMPLING = [sampling_of(number, pattern) for number, pattern in enumerate(PATTERNS)]
PROMPTS = prompts_for(random.Random(3), len(PATTERNS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return [
        Driver(tiny_runner(folder, grammars=SHARED, **OPTIONS), max_running=11).run([prompt], sampling)[0]
        for prompt, sampling in zip(PROMPTS, SAMPLING, strict=True)
    ]


def test_answers_follow_their_rules_of_tokens(expected):
    assert set(text_of(expected[1])) <= set("ab")
    assert "ab" not in text_of(expected[1])
    assert set(expected[3]) <= set(ids_of("ilmno"))
    assert all(token < 40 for token in expected[5])
    assert all(token % 2 for token in expected[5][1:])


def test_texts_are_of_their_grammars(expected):
    for sampling, tokens in zip(SAMPLING, expected, strict=True):
        if sampling.grammar is None:
            continue
        matcher = SHARED.compiled(sampling.grammar).states().matcher()
        tokens = tokens[text_of(tokens).find("</t>") + 4 :] if sampling.thinking else tokens
        assert matcher.consume_tokens(tokens), text_of(tokens)
        assert matcher.is_accepting() or len(tokens) == 20


@pytest.mark.parametrize("company", [{}, {"preempt_every": 3, "swap": True, "chunk": 9}, {"preempt_every": 2}])
@pytest.mark.parametrize(
    "ahead",
    [
        {},
        {"lookahead": True},
        {"capture": True, "backend": PaddedBackend},
        {"lookahead": True, "capture": True, "backend": PaddedBackend},
    ],
    ids=["plain", "ahead", "graphs", "graphs-ahead"],
)
def test_tokens_depend_on_neither_company_nor_graphs_nor_a_step_ahead(folder, expected, ahead, company):
    ahead = {**ahead, "capture": Recorded()} if "capture" in ahead else ahead
    runner = tiny_runner(folder, grammars=SHARED, **ahead, **OPTIONS)
    outputs = Driver(runner, max_running=11, rng=random.Random(1), **company).run(PROMPTS, SAMPLING)
    assert [to_end(output) for output in outputs] == expected


def test_log_probabilities_are_those_without_the_grammar(folder):
    driver = Driver(tiny_runner(folder, **OPTIONS), max_running=11)
    driver.run(PROMPTS[:1], SamplingParams(1, logprobs=1))
    (free,) = driver.sequences[0].logprobs
    driver = Driver(tiny_runner(folder, grammars=SHARED, **OPTIONS), max_running=11)
    driver.run(PROMPTS[:1], SamplingParams(1, logprobs=1, stop_token_ids=(EOS,), grammar=regex("[01]")))
    (bound,) = driver.sequences[0].logprobs
    assert (bound.top_token_ids, bound.top_logprobs) == (free.top_token_ids, pytest.approx(free.top_logprobs))
    assert bound.logprob < free.logprob


def test_masked_logits_are_minus_infinity_and_no_others_change():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(4, 71)).astype(np.float32))
    before = logits.clone()
    bits = rng.integers(-(2**31), 2**31, size=(2, 3)).astype(np.int32)
    mask_rows(logits, np.array([3, 1]), bits)
    for row, words in [(3, bits[0]), (1, bits[1])]:
        kept = np.array([words[i // 32] >> (i % 32) & 1 for i in range(71)], bool)
        assert torch.equal(logits[row][kept], before[row][kept])
        assert torch.isinf(logits[row][~kept]).all()
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
