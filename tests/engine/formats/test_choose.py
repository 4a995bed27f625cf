"""The formats of a model, by name or by what its files say."""

import pytest

from inflight_engine.formats.choose import REASONING_PARSERS, TOOL_CALL_PARSERS, Chosen, ModelText, choose


def names(chosen):
    return (chosen.format and chosen.format.names[0], chosen.reasoning and chosen.reasoning.names[0])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelText(), (None, None)),
        (ModelText(chat_template="<tool_call>{'name'}</tool_call>", model_type="qwen2"), ("hermes", None)),
        (ModelText(chat_template="<tool_call> <think>", model_type="qwen3"), ("hermes", "qwen3")),
        (ModelText(chat_template="<tool_call><function=", model_type="qwen3_moe"), ("qwen3_coder", None)),
        (ModelText(chat_template="<tool_call><arg_key> <think>"), ("glm47", "qwen3")),
        (ModelText(chat_template="<｜DSML｜function_calls>"), ("deepseek_v32", None)),
        (ModelText(chat_template="<｜tool▁sep｜> ```json"), ("deepseek_v3", None)),
        (ModelText(chat_template="<｜tool▁sep｜>"), ("deepseek_v31", None)),
        (ModelText(chat_template="[TOOL_CALLS] [ARGS] [THINK]"), ("mistral", "mistral")),
        (ModelText(chat_template="<|channel|>analysis functions."), ("openai", "openai_gptoss")),
        (ModelText(chat_template="no marks", model_type="kimi_k2"), ("kimi_k2", None)),
        (ModelText("open\n<|tool_call>", "<tool_call>", "qwen3"), ("gemma4", None)),
        (ModelText(chat_template="<tool_call><function=", model_type="qwen3_next"), ("qwen3_coder", None)),
        (ModelText(chat_template="<think>", model_type="qwen3_next"), ("hermes", "qwen3")),
        (ModelText(chat_template="[THINK]", model_type="deepseek_v4"), ("deepseek_v4", "mistral")),
    ],
)
def test_files_of_the_model_tell(model, expected):
    assert names(choose(model)) == expected


@pytest.mark.parametrize(
    ("model_types", "expected"),
    [
        (("qwen2", "qwen3", "qwen3_moe", "qwen3_next"), ("hermes", None)),
        (("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), ("qwen3_coder", "qwen3")),
        (("glm4_moe", "glm4_moe_lite"), ("glm47", "qwen3")),
        (("deepseek_v3",), ("deepseek_v31", None)),
        (("deepseek_v32",), ("deepseek_v32", "qwen3")),
        (("deepseek_v4",), ("deepseek_v4", "qwen3")),
        (("kimi_k2",), ("kimi_k2", None)),
        (("gemma4", "gemma4_text"), ("gemma4", "gemma4")),
        (("gpt_oss",), ("openai", "openai_gptoss")),
        (("mistral",), ("mistral", None)),
        (("llama", ""), (None, None)),
    ],
)
def test_without_marks_the_model_type_tells_and_models_think_where_all_of_their_type_do(model_types, expected):
    assert [names(choose(ModelText("", "no marks", each))) for each in model_types] == [expected] * len(model_types)


def test_names_win_over_the_files():
    model = ModelText(chat_template="<tool_call> <think>")
    assert names(choose(model, "kimi_k2", "gemma4")) == ("kimi_k2", "gemma4")
    assert choose(model, "none", "none") == Chosen()


def test_each_name_is_a_format():
    for name in TOOL_CALL_PARSERS[2:]:
        assert name in choose(ModelText(), name).format.names
    for name in REASONING_PARSERS[2:]:
        assert name in choose(ModelText(), "none", name).reasoning.names


def test_mistral_is_the_version_of_the_template():
    assert choose(ModelText(chat_template="[TOOL_CALLS][ARGS]"), "mistral").format.section is None
    assert choose(ModelText(chat_template="[TOOL_CALLS]"), "mistral").format.section is not None


def test_marks_hold_the_special_tokens_of_the_formats():
    assert "<|tool_call_begin|>" in choose(ModelText(), "kimi_k2").marks
    assert "[/THINK]" in choose(ModelText(), "none", "mistral").marks


@pytest.mark.parametrize(
    ("parsers", "others"),
    [
        (("llama3_json", "none"), ("<|eot_id|>", "<|end|>")),
        (("none", "qwen3"), ("<|start|>", "<|end|>", "<|message|>")),
    ],
)
def test_names_of_other_special_tokens_stay_out_of_answers(parsers, others):
    assert not any(each in choose(ModelText(), *parsers).marks for each in others)


def test_marks_hold_those_of_channels():
    for parsers in (("openai", "none"), ("none", "openai_gptoss")):
        marks = choose(ModelText(), *parsers).marks
        assert all(each in marks for each in ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"))
