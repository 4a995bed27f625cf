"""Pushed token by token or many at once, the text is that of all tokens together, in whole characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.detokenizer import WindowDetokenizer
from inflight_engine.models.tokens.tokenizer import Tokenizer, load_tokenizer


def sentencepiece_like():
    """A vocabulary with SentencePiece's spaces and byte fallback, decoded as Llama 2's tokenizer.json does."""
    words = ["<s>", "▁Hello", "▁world", "ing", "▁", "é", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Backend(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, None, ())


SPM = sentencepiece_like()


@pytest.fixture(scope="module")
def smollm2():
    return load_tokenizer(resolve("builtin://smollm2"))


def in_pieces(detokenizer, ids, cuts):
    text, start = [], 0
    for cut in [*sorted(cuts), len(ids)]:
        text.append(detokenizer.push(ids[start:cut]))
        start = max(start, cut)
    return text


# Of the 256 bytes SmolLM2's vocabulary has only those that its training text had.
assigned_text = st.text(
    st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc", "Cn", "Co"]) | st.just("\n")
)


@given(assigned_text, st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=150, deadline=None)
def test_byte_level_text_comes_back_whole(smollm2, text, cuts):
    ids = smollm2.encode(text)
    detokenizer = smollm2.detokenizer()
    pieces = in_pieces(detokenizer, ids, cuts)
    assert "".join(pieces) + detokenizer.flush() == text == smollm2.decode(ids)
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


@given(st.lists(st.integers(0, 49151), max_size=30))
@settings(max_examples=150, deadline=None)
def test_byte_level_equals_decoding_everything_whatever_the_tokens(smollm2, ids):
    detokenizer = smollm2.detokenizer()
    assert "".join(detokenizer.push([i]) for i in ids) + detokenizer.flush() == smollm2.decode(ids)


def test_half_a_character_is_held_back(smollm2):
    ids = smollm2.encode("🦜")
    assert len(ids) > 1
    detokenizer = smollm2.detokenizer()
    assert [detokenizer.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["🦜"]
    detokenizer.push(ids[:-1])
    assert detokenizer.flush() == "�"
    assert detokenizer.flush() == ""


def test_special_tokens_and_ids_beyond_the_vocabulary_have_no_text(smollm2):
    detokenizer = smollm2.detokenizer()
    assert detokenizer.push([1, *smollm2.encode("hi"), 2, 49152 + 5]) == "hi"


def ids_of(*tokens):
    return [SPM._backend.token_to_id(token) for token in tokens]


def test_sentencepiece_spaces_between_words_survive():
    detokenizer = SPM.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    assert [detokenizer.push([i]) for i in ids_of("▁Hello", "▁world", "ing", "!")] == ["Hello", " world", "ing", "!"]


def test_sentencepiece_keeps_the_space_after_a_prompt():
    assert SPM.detokenizer(ids_of("<s>", "▁Hello")).push(ids_of("▁world")) == " world"


def test_byte_fallback_is_held_back_until_a_character_is_whole():
    detokenizer = SPM.detokenizer()
    parrot = [f"<0x{byte:02X}>" for byte in "🦜".encode()]
    assert [detokenizer.push([i]) for i in ids_of("▁Hello", *parrot, "!")] == ["Hello", "", "", "", "🦜", "!"]


def test_byte_fallback_that_never_becomes_text_is_let_go():
    detokenizer = SPM.detokenizer()
    broken = ids_of("<0x80>") * 40
    pieces = [detokenizer.push([i]) for i in broken]
    assert sum(map(len, pieces)) + len(detokenizer.flush()) == 40
    assert max(map(len, pieces)) <= 9
    assert len(detokenizer._window) <= 20


@pytest.mark.parametrize(("prompt", "expected"), [(["<s>", "▁Hello"], " world"), (["<s>"], "world"), ([], "world")])
def test_special_tokens_do_not_pile_up_and_change_nothing_about_the_next_word(prompt, expected):
    detokenizer = SPM.detokenizer(ids_of(*prompt))
    for _ in range(40):
        assert detokenizer.push(ids_of("<s>")) == ""
        assert len(detokenizer._window) <= len(prompt)
    assert detokenizer.push(ids_of("▁world")) == expected


@pytest.mark.parametrize("prompt", [[], ["<s>", "▁Hello"], ["<s>"]])
@given(tokens=st.lists(st.sampled_from(["<s>", "▁Hello", "▁world", "ing", "▁", "é", "!"]), max_size=40))
@settings(deadline=None)
def test_sentencepiece_equals_decoding_everything(prompt, tokens):
    detokenizer = SPM.detokenizer(ids_of(*prompt))
    text = "".join(detokenizer.push([i]) for i in ids_of(*tokens)) + detokenizer.flush()
    assert SPM.decode(ids_of(*prompt)) + text == SPM.decode(ids_of(*prompt, *tokens))


WORDS = ["<s>", "▁Hello", "▁world", "ing", "▁", "é", "!"]
CHARACTERS = [[f"<0x{byte:02X}>" for byte in character.encode()] for character in "🦜é€\n�"]


@pytest.mark.parametrize("prompt", [[], ["<s>", "▁Hello"]])
@given(
    parts=st.lists(st.sampled_from([[word] for word in WORDS] + CHARACTERS), max_size=20),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
@settings(deadline=None, max_examples=100)
def test_byte_fallback_equals_decoding_everything_however_it_is_cut(prompt, parts, cuts):
    ids = ids_of(*(token for part in parts for token in part))
    detokenizer = SPM.detokenizer(ids_of(*prompt))
    text = "".join(in_pieces(detokenizer, ids, cuts)) + detokenizer.flush()
    assert SPM.decode(ids_of(*prompt)) + text == SPM.decode([*ids_of(*prompt), *ids])


@given(
    ids=st.lists(st.integers(0, len(WORDS) + 255) | st.sampled_from([400, 0]), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
@settings(deadline=None, max_examples=100)
def test_text_of_any_tokens_does_not_depend_on_how_they_are_cut(ids, cuts):
    at_once, by_pieces = SPM.detokenizer(), SPM.detokenizer()
    text = "".join(in_pieces(by_pieces, ids, cuts)) + by_pieces.flush()
    assert text == at_once.push(ids) + at_once.flush()


@given(text=assigned_text, cuts=st.lists(st.integers(0, 60), max_size=6))
@settings(deadline=None, max_examples=60)
def test_a_decoder_in_a_sequence_loses_no_character_however_it_is_cut(smollm2, text, cuts):
    """The vocabulary has byte-level tokens behind another decoder: only decoding shows half characters."""
    ids = smollm2.encode(text)
    detokenizer = WindowDetokenizer(smollm2.decode)
    assert "".join(in_pieces(detokenizer, ids, cuts)) + detokenizer.flush() == text


def test_a_long_push_that_ends_inside_a_character_loses_nothing():
    detokenizer = SPM.detokenizer(ids_of("<s>"))
    parrot = [f"<0x{byte:02X}>" for byte in "🦜".encode()]
    pushes = [ids_of(*["▁world"] * 12, *parrot[:2]), ids_of(*parrot[2:], "!")]
    assert [detokenizer.push(ids) for ids in pushes] == ["world" + " world" * 11, "🦜!"]


def test_bytes_of_sentencepiece_tokens_are_their_text_with_spaces_and_fallback_bytes():
    spelled = [SPM.token_bytes(token_id) for token_id in (0, 1, 4, 5, 7 + 0xC3)]
    assert spelled == [b"<s>", b" Hello", b" ", "é".encode(), b"\xc3"]
