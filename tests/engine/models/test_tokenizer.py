"""The tokenizers of the built-in model and of Hugging Face folders."""

import json
import subprocess
import sys
import threading
import time

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from inflight_engine.formats.choose import choose
from inflight_engine.models.checkpoints.generation_config import SamplingDefaults
from inflight_engine.models.checkpoints.source import ModelFiles, ModelSourceError, resolve
from inflight_engine.models.tokens import tokenizer as tokenizer_module
from inflight_engine.models.tokens.conversation import Conversation, TooManyTokensError, Wanted
from inflight_engine.models.tokens.tokenizer import load_tokenizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 7,
}
TEXTS = [
    "Hello world",
    "  two spaces\n\n\ttab",
    "it's 12345 o'clock, 3.14159",
    "Grüße aus Zürich 🦜🏔 — done",
    "def f(x):\n    return x ** 2",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


@pytest.fixture(scope="module")
def smollm2():
    return load_tokenizer(resolve("builtin://smollm2"))


@pytest.fixture
def folder(tmp_path):
    """A byte-level tokenizer with bos before every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", *alphabet])}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def load(folder):
    return load_tokenizer(ModelFiles(str(folder), folder))


def write(folder, name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize("method", ["encode", "spell"])
def test_other_threads_run_while_a_long_text_is_converted(smollm2, method):
    text = "Requests wait. " * 60_000
    given = text if method == "encode" else smollm2.encode(text)
    done, turns = threading.Event(), 0

    def convert():
        getattr(smollm2, method)(given)
        done.set()

    thread = threading.Thread(target=convert)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 2  # One, where the conversion keeps the others waiting.


def test_the_builtin_model(smollm2):
    assert (smollm2.vocab_size, smollm2.eos_token_ids) == (49152, (2,))
    assert smollm2.encode("Hello world") == [19556, 905]
    assert smollm2.encode("<|im_end|>") == [2]


@pytest.mark.parametrize("text", TEXTS)
def test_text_goes_through_and_comes_back(smollm2, text):
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_tokens_make_up_the_text_special_ones_by_their_names(smollm2, text):
    assert b"".join(map(smollm2.token_bytes, smollm2.encode(text))) == text.encode()
    assert smollm2.token_bytes(10**6) == b""


def test_digits_are_tokens_of_their_own(smollm2):
    assert len(smollm2.encode("12345")) == 5


def test_a_conversation_ends_where_the_answer_begins(smollm2):
    text = smollm2._backend.decode(smollm2.encode_chat(Conversation(CHAT)), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.slow
def test_the_builtin_model_tokenizes_as_transformers_does(smollm2):
    from transformers import AutoTokenizer

    files = resolve("builtin://smollm2")
    reference = AutoTokenizer.from_pretrained(files.folder, gguf_file=files.gguf.name)
    for text in TEXTS:
        assert smollm2.encode(text) == reference(text)["input_ids"]
    chat = reference.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert smollm2.encode_chat(Conversation(CHAT)) == chat["input_ids"]


def test_loading_imports_neither_torch_nor_transformers():
    code = (
        "import sys; from inflight_engine.models.checkpoints.source import resolve;"
        "from inflight_engine.models.tokens.tokenizer import load_tokenizer;"
        "from inflight_engine.models.tokens.conversation import Conversation;"
        "t = load_tokenizer(resolve('builtin://smollm2'));"
        "t.encode_chat(Conversation([{'role': 'user', 'content': 'x'}]));"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_folder_adds_what_its_tokenizer_adds_to_a_plain_prompt(folder):
    tokenizer = load(folder)
    assert tokenizer.encode("ab")[0] == 0
    assert tokenizer.decode(tokenizer.encode("ab é")) == "ab é"


def test_a_prompt_may_do_without_what_the_tokenizer_adds(folder):
    tokenizer = load(folder)
    ids = tokenizer.encode("ab")
    assert tokenizer.encode("ab", special_tokens=False) == ids[1:]
    assert tokenizer.spell(ids) == "<s>ab"
    assert tokenizer.names([*ids, 10**6]) == ["<s>", "a", "b", ""]


def test_a_chat_template_writes_bos_itself(folder):
    write(folder, "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}x"})
    ids = load(folder).encode_chat(Conversation([{"role": "user", "content": "hi"}]))
    assert ids.count(0) == 1


def test_a_template_file_wins_over_the_settings(folder):
    write(folder, "tokenizer_config.json", {"chat_template": "old"})
    write(folder, "chat_template.jinja", "new")
    assert load(folder).decode(load(folder).encode_chat(Conversation([]))) == "new"


def test_a_given_template_replaces_that_of_the_model(folder, tmp_path):
    write(folder, "chat_template.jinja", "new")
    write(tmp_path, "own.jinja", "own")
    tokenizer = load_tokenizer(ModelFiles("m", folder), chat_template=tmp_path / "own.jinja")
    assert tokenizer.decode(tokenizer.encode_chat(Conversation([]))) == "own"
    with pytest.raises(FileNotFoundError):
        load_tokenizer(ModelFiles("m", folder), chat_template=tmp_path / "none.jinja")


def test_the_built_in_model_takes_a_given_template_too(tmp_path):
    write(tmp_path, "own.jinja", "own")
    tokenizer = load_tokenizer(resolve("builtin://smollm2"), chat_template=tmp_path / "own.jinja")
    assert tokenizer.decode(tokenizer.encode_chat(Conversation([]))) == "own"


def test_special_tokens_of_formats_are_text_where_they_are_asked_for(folder, smollm2):
    for tokenizer, text in ((load(folder), "ab"), (smollm2, "Hi é")):
        (special,) = tokenizer.special_ids("<s>" if tokenizer is not smollm2 else "<|im_start|>")
        ids = tokenizer.encode(text, special_tokens=False)
        name = tokenizer.spell([special])
        answer = [*ids, special, *ids]
        for shown, expected in ((frozenset(), text + text), (frozenset([special]), text + name + text)):
            detokenizer = tokenizer.detokenizer((), shown)
            assert "".join(detokenizer.push([each]) for each in answer) + detokenizer.flush() == expected
            detokenizer = tokenizer.detokenizer((), shown)
            assert detokenizer.push(answer) + detokenizer.flush() == expected


def test_the_settings_for_clients_have_texts_of_special_tokens_and_the_template_that_holds(folder, tmp_path):
    assert load(folder).settings == {"tokenizer_class": "PreTrainedTokenizerFast"}
    given = {"tokenizer_class": "X", "bos_token": {"content": "<s>"}, "chat_template": "old", "model_max_length": 5}
    write(folder, "tokenizer_config.json", given)
    write(tmp_path, "own.jinja", "own")
    settings = load_tokenizer(ModelFiles("m", folder), chat_template=tmp_path / "own.jinja").settings
    assert settings == {**given, "bos_token": "<s>", "chat_template": "own"}
    builtin = load_tokenizer(resolve("builtin://smollm2")).settings
    assert builtin["eos_token"] == "<|im_end|>"
    assert "im_start" in builtin["chat_template"]


def test_of_named_templates_the_default_one_is_taken(folder):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert load(folder).decode(load(folder).encode_chat(Conversation([]))) == "plain"


def fields(tool_calls, content="", reasoning="<think>"):
    """A response template as transformers writes them: what ends in `_pattern` is a regular expression."""
    content = {"close_pattern": content, "content": "text"} if content else {}
    return {
        "defaults": {"role": "assistant"},
        "fields": {"reasoning_content": {"open": reasoning}, "tool_calls": tool_calls, "content": content},
    }


@pytest.mark.parametrize(
    ("response_template", "format_name", "reasoning_name"),
    [
        # Of transformers' cli/serving/utils.py.
        (
            fields(
                {"open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>"},
                reasoning="<|channel>thought\n",
            ),
            "gemma4",
            "gemma4",
        ),
        (
            fields(
                {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>"},
                r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)",
            ),
            "hermes",
            "qwen3",
        ),
        (fields({"open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>"}), "qwen3_coder", "qwen3"),
        # Of TRL.
        (
            {
                "fields": {
                    "tool_calls": {
                        "open_pattern": r'\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*',
                        "close_pattern": r"\}<\|eot_id\|>\s*",
                    }
                }
            },
            "llama3_json",
            None,
        ),
        (
            fields(
                {"open_pattern": r"to=functions\.(?P<name>\S+?)<\|channel\|>commentary\s+json<\|message\|>"},
                reasoning="<|channel|>analysis<|message|>",
            ),
            "openai",
            "openai_gptoss",
        ),
        (fields({"content_args": {"tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n"}}), "glm47", "qwen3"),
        ({"fields": {"tool_calls": {"open_pattern": r"\[TOOL_CALLS\](?P<name>\w+)\[ARGS\]"}}}, "mistral", None),
        (None, "hermes", None),
        ({"thinking": "none"}, "hermes", None),
    ],
)
def test_the_response_template_names_the_formats_before_the_chat_template(
    folder, response_template, format_name, reasoning_name
):
    settings = {"chat_template": "<tool_call>", "response_template": response_template}
    write(folder, "tokenizer_config.json", settings)
    chosen = choose(load(folder).model_text)
    assert format_name in chosen.format.names
    assert reasoning_name in (chosen.reasoning.names if chosen.reasoning else (None,))


def test_without_a_chat_template_a_conversation_is_refused(folder):
    with pytest.raises(ValueError, match="has no chat template"):
        load(folder).encode_chat(Conversation([{"role": "user", "content": "hi"}]))


def test_eos_comes_from_the_generation_config_first(folder):
    assert load(folder).eos_token_ids == (7,)
    write(folder, "generation_config.json", {"eos_token_id": [3, 4]})
    assert load(folder).eos_token_ids == (3, 4)


GENERATION = {"eos_token_id": 3, "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None}


def test_sampling_defaults_are_those_of_the_generation_config(folder):
    assert load(folder).sampling_defaults == SamplingDefaults()
    write(folder, "generation_config.json", {**GENERATION, "max_new_tokens": 9, "repetition_penalty": 2})
    assert load(folder).sampling_defaults == SamplingDefaults(0.6, 0.95, 20, 0.0, 2.0, 9)


def test_no_sampling_defaults_leaves_the_models_eos(folder):
    write(folder, "generation_config.json", GENERATION)
    tokenizer = load_tokenizer(ModelFiles("m", folder), "none")
    assert (tokenizer.eos_token_ids, tokenizer.sampling_defaults) == ((3,), SamplingDefaults())


def test_another_folder_stands_for_the_models_generation_config(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(folder, "generation_config.json", GENERATION)
    with pytest.raises(ModelSourceError, match=r"not a folder that holds generation_config\.json"):
        load_tokenizer(ModelFiles("m", folder), str(other))
    write(other, "generation_config.json", {"top_k": -1, "temperature": 0})
    tokenizer = load_tokenizer(ModelFiles("m", folder), str(other))
    assert (tokenizer.eos_token_ids, tokenizer.sampling_defaults) == ((7,), SamplingDefaults(temperature=0.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("top_p", 0), ("top_k", 2.5), ("min_p", "x"), ("repetition_penalty", 0), ("top_k", True)],
)
def test_a_default_out_of_range_is_refused_with_its_file_and_name(folder, name, value):
    write(folder, "generation_config.json", {name: value})
    with pytest.raises(ValueError, match=rf"generation_config\.json: {name} is"):
        load(folder)
    assert load_tokenizer(ModelFiles("m", folder), "none").sampling_defaults == SamplingDefaults()


def test_eos_falls_back_to_the_tokenizers_own(folder):
    write(folder, "config.json", CONFIG | {"eos_token_id": None})
    write(folder, "tokenizer_config.json", {"eos_token": "</s>"})
    assert load(folder).eos_token_ids == (1,)


def test_a_folder_without_tokenizer_json_says_how_to_get_one(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelSourceError, match=r"has no tokenizer\.json; save one"):
        load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_damaged_file_is_named(folder, name):
    write(folder, name, "{ this is not JSON")
    with pytest.raises(ValueError, match=f"{name} cannot be read"):
        load(folder)


WRITTEN = " ".join(TEXTS) * 20


def test_a_text_of_more_tokens_than_are_wanted_is_refused_with_their_number(smollm2):
    token_ids = smollm2.encode(WRITTEN)
    assert smollm2.encode(WRITTEN, wanted=Wanted(len(token_ids))) == token_ids
    with pytest.raises(TooManyTokensError) as refused:
        smollm2.encode(WRITTEN, wanted=Wanted(len(token_ids) - 1))
    assert refused.value.count == len(token_ids)
    conversation = Conversation(CHAT)
    fits = len(smollm2.encode_chat(conversation))
    assert len(smollm2.encode_chat(conversation, Wanted(fits))) == fits
    with pytest.raises(TooManyTokensError):
        smollm2.encode_chat(conversation, Wanted(fits - 1))


def test_a_text_longer_than_the_longest_tokens_is_refused_before_it_is_tokenized(smollm2, monkeypatch):
    assert len(smollm2.encode("#" * 80, wanted=Wanted(1))) == 1
    monkeypatch.setattr(smollm2, "_backend", None)
    with pytest.raises(TooManyTokensError):
        smollm2.encode("#" * 1000, wanted=Wanted(3))


def test_of_a_text_that_has_too_many_tokens_only_the_first_pieces_are_tokenized(smollm2, monkeypatch):
    tokenized, encoded = [], smollm2._encoded
    monkeypatch.setattr(smollm2, "_encoded", lambda text, special: tokenized.append(text) or encoded(text, special))
    monkeypatch.setattr(tokenizer_module, "_PIECE", 1000)
    with pytest.raises(TooManyTokensError) as refused:
        smollm2.encode("7" * 20_000, wanted=Wanted(2000))
    assert refused.value.count is None
    assert tokenized == ["7" * 1000] * 3
    spaces = " " * 20_000
    assert len(smollm2.encode(spaces, wanted=Wanted(2000))) < 2000


@pytest.mark.parametrize("length", [*range(1, 12), 100, 1000])
def test_pieces_refuse_no_text_that_fits(smollm2, monkeypatch, length):
    monkeypatch.setattr(tokenizer_module, "_PIECE", length)
    monkeypatch.setattr(tokenizer_module, "_USUAL", 0)
    token_ids = smollm2.encode(WRITTEN)
    assert smollm2.encode(WRITTEN, wanted=Wanted(len(token_ids))) == token_ids


@pytest.mark.parametrize("most", [1, 10, 300])
def test_of_a_text_that_is_cut_the_wanted_end_has_the_tokens_of_the_whole_text(smollm2, monkeypatch, most):
    monkeypatch.setattr(tokenizer_module, "_PIECE", 100)
    token_ids = smollm2.encode(WRITTEN * 10)
    for cut in ("left", "right"):
        found = smollm2.encode(WRITTEN * 10, wanted=Wanted(most, cut))
        assert most < len(found) < len(token_ids)
        kept = slice(-most, None) if cut == "left" else slice(most)
        assert found[kept] == token_ids[kept]
    assert smollm2.encode("Hi", wanted=Wanted(1, "left")) == smollm2.encode("Hi")
