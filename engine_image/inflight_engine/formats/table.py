"""The formats. Sources: chat templates of the models, and vLLM's and transformers' tests of their parsers."""

from __future__ import annotations

from inflight_engine.formats.format import (
    Format,
    GemmaArguments,
    Json,
    JsonCall,
    Maybe,
    Name,
    NumberedName,
    PythonCall,
    Reasoning,
    Section,
    Space,
    Tagged,
)

_GLM4 = ("glm4_moe", "glm4_moe_lite")
_QWEN3_5 = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_GEMMA4 = ("gemma4", "gemma4_text")

_DSML_PARAMETERS = Tagged(
    key_open='<｜DSML｜parameter name="',
    key_close='"',
    value_open=' string="{string}">',
    value_close="</｜DSML｜parameter>",
    after="\n",
)
_DSML_CALL = (
    '<｜DSML｜invoke name="',
    Name(('">',)),
    Space("\n"),
    _DSML_PARAMETERS,
    "</｜DSML｜invoke>",
)
_DEEPSEEK_SECTION = Section(("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",))


FORMATS = (
    Format(
        ("glm47", "glm45"),
        (
            "<tool_call>",
            Name(("", "\n")),
            Space(),
            Tagged("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
            "</tool_call>",
        ),
        markers=("<arg_key>",),
        model_types=_GLM4,
        between="",
    ),
    Format(
        ("qwen3_coder", "qwen3_xml"),
        (
            Maybe("<tool_call>"),
            Space("\n"),
            "<function=",
            Name((">",)),
            Space("\n"),
            Tagged("<parameter=", ">", "", "</parameter>", before_value="\n", after_value="\n", after="\n"),
            "</function>",
            Space("\n"),
            Maybe("</tool_call>"),
        ),
        markers=("<function=",),
        model_types=_QWEN3_5,
    ),
    Format(
        ("hermes",),
        ("<tool_call>", Space("\n"), JsonCall(("arguments",)), Space("\n"), "</tool_call>"),
        markers=("<tool_call>",),
        model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"),
    ),
    Format(
        ("deepseek_v32",),
        _DSML_CALL,
        markers=("｜DSML｜", "function_calls"),
        model_types=("deepseek_v32",),
        section=Section(("<｜DSML｜function_calls>", Space("\n")), (Space("\n"), "</｜DSML｜function_calls>")),
    ),
    Format(
        ("deepseek_v4",),
        _DSML_CALL,
        markers=("｜DSML｜", "tool_calls"),
        model_types=("deepseek_v4",),
        section=Section(("<｜DSML｜tool_calls>", Space("\n")), (Space("\n"), "</｜DSML｜tool_calls>")),
    ),
    Format(
        ("deepseek_v3",),
        (
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            Name(("\n```json\n",)),
            Json(),
            Space("\n"),
            "```<｜tool▁call▁end｜>",
        ),
        markers=("<｜tool▁sep｜>", "```json"),
        section=_DEEPSEEK_SECTION,
    ),
    Format(
        ("deepseek_v31",),
        ("<｜tool▁call▁begin｜>", Name(("<｜tool▁sep｜>",)), Json(), "<｜tool▁call▁end｜>"),
        markers=("<｜tool▁sep｜>",),
        model_types=("deepseek_v3",),
        between="",
        section=_DEEPSEEK_SECTION,
    ),
    Format(
        ("kimi_k2",),
        ("<|tool_call_begin|>", NumberedName("<|tool_call_argument_begin|>"), Json(), "<|tool_call_end|>"),
        markers=("<|tool_calls_section_begin|>",),
        model_types=("kimi_k2",),
        between="",
        section=Section(("<|tool_calls_section_begin|>",), ("<|tool_calls_section_end|>",)),
    ),
    Format(
        ("gemma4",),
        ("<|tool_call>call:", Name(("{",)), GemmaArguments(), "<tool_call|>"),
        markers=("<|tool_call>",),
        model_types=_GEMMA4,
        between="",
    ),
    Format(
        ("openai",),
        ("<|channel|>commentary to=functions.", Name((" <|constrain|>json<|message|>",)), Json()),
        markers=("<|channel|>", "functions."),
        model_types=("gpt_oss",),
        between="<|end|><|start|>assistant",
        channels=True,
    ),
    Format(
        ("mistral",),
        ("[TOOL_CALLS]", Name(("[ARGS]",)), Json()),
        markers=("[TOOL_CALLS]", "[ARGS]"),
        between="",
        short_ids=True,
    ),
    Format(
        ("mistral",),
        (JsonCall(("arguments",)),),
        markers=("[TOOL_CALLS]",),
        model_types=("mistral", "mixtral"),
        section=Section(("[TOOL_CALLS]", Space(" "), "["), ("]",), ", "),
        short_ids=True,
    ),
    Format(
        ("llama4_pythonic",),
        (PythonCall(),),
        markers=("<|python_start|>",),
        model_types=("llama4", "llama4_text"),
        section=Section((Maybe("<|python_start|>"), "["), ("]", Maybe("<|python_end|>")), ", "),
    ),
    Format(
        ("llama3_json", "llama4_json"),
        (Space(), JsonCall(("parameters", "arguments")), Space()),
        markers=('"parameters"', "<|eot_id|>"),
        section=Section((Maybe("<|python_tag|>"),), (), "; "),
    ),
    Format(("pythonic",), (PythonCall(),), markers=("[func_name1(",), section=Section(("[",), ("]",), ", ")),
)

REASONINGS = (
    Reasoning(
        ("openai_gptoss",),
        "<|channel|>analysis<|message|>",
        "<|end|>",
        ("<|channel|>analysis",),
        ("gpt_oss",),
        then="<|start|>assistant",
        channels=True,
    ),
    Reasoning(("gemma4",), "<|channel>", "<channel|>", ("<|channel>",), _GEMMA4, header="thought\n"),
    Reasoning(("mistral",), "[THINK]", "[/THINK]", ("[THINK]",)),
    Reasoning(("deepseek_r1",), "<think>", "</think>", implied=True),
    Reasoning(
        ("qwen3", "deepseek_v3", "deepseek_v4", "glm45", "kimi_k2"),
        "<think>",
        "</think>",
        ("<think>",),
        (*_QWEN3_5, *_GLM4, "deepseek_v32", "deepseek_v4"),
    ),
)
