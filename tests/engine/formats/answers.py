"""Answers of each format, and what clients get of them. The cases are facts from chat templates of the models and from
the tests of vLLM's and transformers' parsers."""

from __future__ import annotations

from inflight_engine.formats.events import TextEvent
from inflight_engine.formats.parser import AnswerParser, Parsing
from inflight_engine.formats.table import FORMATS, REASONINGS

SCHEMAS = {
    "get_weather": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"enum": ["c", "f"]},
        "near": {"type": ["array", "null"]},
    },
    "now": {},
}

FORMAT = {(each.names[0], each.section is not None): each for each in FORMATS}
REASONING = {each.names[0]: each for each in REASONINGS}
THINK = REASONING["qwen3"]
HARMONY = REASONING["openai_gptoss"]


def form(name):
    """The only format of this name, or the one with a section."""
    return FORMAT.get((name, True)) or FORMAT[name, False]


def parsing(name=None, **how):
    return Parsing(format=None if name is None else form(name), schemas=SCHEMAS, **how)


def parse(how, text, cuts=()):
    """Content, reasoning and calls (name, id, arguments) of a text that arrives in pieces. Content and reasoning are
    at the places that their events say."""
    parser, events, begin = AnswerParser(how), [], 0
    for end in (*cuts, len(text)):
        events += parser.feed(text[begin:end])
        begin = end
    events += parser.finish()
    texts, calls = {"content": "", "reasoning": ""}, []
    for event in events:
        if isinstance(event, TextEvent):
            assert event.text
            assert text.startswith(event.text, event.at)
            texts[event.kind] += event.text
        else:
            if event.name is not None:
                assert event.index == len(calls)
                calls.append([event.name, event.id, ""])
            calls[event.index][2] += event.arguments
    assert parser.calls >= len(calls)
    return texts["content"], texts["reasoning"], [tuple(each) for each in calls]


def call(name, arguments="{}", id=None):
    return (name, id, arguments)


OSLO = call("get_weather", '{"city": "Oslo"}')
NOW = call("now")
TWO_WAYS = call("get_weather", '{"city": "Oslo \\"x\\"\\n", "days": 2}')

CASES = {
    "content alone": (parsing("hermes"), " Hello <b>\n", (" Hello <b>\n", "", [])),
    "hermes": (
        parsing("hermes", reasoning=THINK),
        '<think>\nHm.\n</think>\n\nLet me see. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ("Let me see.", "Hm.", [OSLO, NOW]),
    ),
    "hermes, an end tag in a string": (
        parsing("hermes"),
        '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
        ("", "", [call("get_weather", '{"city": "</tool_call>"}')]),
    ),
    "hermes, arguments before the name": (
        parsing("hermes"),
        '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>',
        ("", "", [OSLO]),
    ),
    "hermes, arguments in a string": (
        parsing("hermes"),
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
        ("", "", [OSLO]),
    ),
    "hermes, no arguments": (
        parsing("hermes"),
        '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": null, "id": [1]}</tool_call>',
        ("", "", [NOW, NOW]),
    ),
    "hermes, text around calls": (
        parsing("hermes"),
        'A <tool_call>{"name": "now"}</tool_call> and B.',
        ("A and B.", "", [NOW]),
    ),
    "hermes, not a call": (
        parsing("hermes"),
        'The tag <tool_call> opens {"name": 1}, </tool_call> closes',
        ('The tag <tool_call> opens {"name": 1}, </tool_call> closes', "", []),
    ),
    "hermes, broken before the arguments": (
        parsing("hermes"),
        '<tool_call>{"name": "now", 1}</tool_call>',
        ('<tool_call>{"name": "now", 1}</tool_call>', "", []),
    ),
    "hermes, broken within the arguments": (
        parsing("hermes"),
        '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>',
        ("oops}}</tool_call>", "", [call("now", '{"a": ')]),
    ),
    "hermes, cut off": (
        parsing("hermes"),
        '<tool_call>{"name": "now", "arguments": {"a": "b',
        ("", "", [call("now", '{"a": "b')]),
    ),
    "hermes, cut off in its end": (
        parsing("hermes"),
        '<tool_call>{"name": "now", "arguments": {}}\n</tool_',
        ("", "", [NOW]),
    ),
    "hermes, cut off before the arguments": (
        parsing("hermes"),
        '<tool_call>{"name": "now"',
        ('<tool_call>{"name": "now"', "", []),
    ),
    "hermes, one call only": (
        parsing("hermes", parallel=False),
        '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": {"days": 1}}</tool_call>',
        ("", "", [NOW]),
    ),
    "hermes, a call ends the reasoning": (
        parsing("hermes", reasoning=THINK, opened=True),
        'So I call <tool_call>{"name": "now"}</tool_call>',
        ("", "So I call", [NOW]),
    ),
    "reasoning that never ends": (parsing(reasoning=THINK, opened=True), "hm, so\n", ("", "hm, so", [])),
    "reasoning that says nothing": (parsing(reasoning=THINK), "<think>\n\n</think>\n\nHi", ("Hi", "", [])),
    "reasoning is at the beginning": (
        parsing(reasoning=THINK),
        "a <think> b </think>",
        ("a <think> b </think>", "", []),
    ),
    "reasoning without its opening tag": (
        parsing(reasoning=REASONING["deepseek_r1"]),
        "hm</think>Hi",
        ("Hi", "hm", []),
    ),
    "qwen3_coder": (
        parsing("qwen3_coder"),
        'I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo "x"\n\n</parameter>\n<parameter=days>\n'
        "2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ("I look.", "", [TWO_WAYS, NOW]),
    ),
    "qwen3_coder, without the outer tags": (
        parsing("qwen3_coder"),
        "<function=get_weather><parameter=units>c</parameter><parameter=near>null</parameter>"
        "<parameter=days>soon</parameter></function>",
        ("", "", [call("get_weather", '{"units": "c", "near": null, "days": "soon"}')]),
    ),
    "llama3_json": (
        parsing("llama3_json"),
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
        ("", "", [OSLO, NOW]),
    ),
    "llama3_json, tagged": (
        parsing("llama3_json"),
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
        ("", "", [OSLO]),
    ),
    "llama3_json, JSON that is the answer": (
        parsing("llama3_json"),
        '{"name": "Ada", "parameters": {"born": 1815}}',
        ('{"name": "Ada", "parameters": {"born": 1815}}', "", []),
    ),
    "llama3_json, JSON within the answer": (
        parsing("llama3_json"),
        'Like {"name": "now", "parameters": {}}',
        ('Like {"name": "now", "parameters": {}}', "", []),
    ),
    "pythonic": (
        parsing("pythonic"),
        "[get_weather(city='Oslo \"x\"\\n', days=2), now()]",
        ("", "", [TWO_WAYS, NOW]),
    ),
    "pythonic, nested literals": (
        parsing("pythonic"),
        "[now(a=[1, -2.5, None,], b={'k': True, \"l\": []}, c='\\u00e9\\'')]",
        ("", "", [call("now", '{"a": [1, -2.5, null], "b": {"k": true, "l": []}, "c": "é\'"}')]),
    ),
    "pythonic, a list that is the answer": (parsing("pythonic"), "[1] says so", ("[1] says so", "", [])),
    "llama4_pythonic": (
        parsing("llama4_pythonic"),
        '<|python_start|>[get_weather(city="Oslo")]<|python_end|>',
        ("", "", [OSLO]),
    ),
    "mistral before v11": (
        parsing("mistral"),
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
        ("", "", [OSLO, NOW]),
    ),
    "mistral": (
        Parsing(FORMAT["mistral", False], REASONING["mistral"], schemas=SCHEMAS),
        '[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}',
        ("I look.", "Hm.", [OSLO, NOW]),
    ),
    "deepseek_v3": (
        parsing("deepseek_v3", reasoning=THINK, opened=True),
        "Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Oslo"}\n'
        "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        ("", "Hm.", [OSLO, NOW]),
    ),
    "deepseek_v31": (
        parsing("deepseek_v31"),
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", "", [OSLO, NOW]),
    ),
    "deepseek_v32": (
        parsing("deepseek_v32"),
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        ("", "", [call("get_weather", '{"city": "Oslo", "days": 2}'), NOW]),
    ),
    "deepseek_v4": (
        parsing("deepseek_v4"),
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ("", "", [OSLO]),
    ),
    "kimi_k2": (
        parsing("kimi_k2", reasoning=THINK),
        "<think>Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        (
            "I look.",
            "Hm.",
            [call("get_weather", '{"city": "Oslo"}', "functions.get_weather:0"), call("now", "{}", "functions.now:1")],
        ),
    ),
    "glm47": (
        parsing("glm47"),
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
        "<arg_value>2</arg_value></tool_call><tool_call>now</tool_call>",
        ("", "", [call("get_weather", '{"city": "Oslo", "days": 2}'), NOW]),
    ),
    "glm45": (
        parsing("glm47"),
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
        ("", "", [OSLO]),
    ),
    "gemma4": (
        parsing("gemma4", reasoning=REASONING["gemma4"]),
        '<|channel>thought\nHm.<channel|><|tool_call>call:get_weather{city:<|"|>Oslo "x"\n<|"|>,days:2}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        ("", "Hm.", [TWO_WAYS, NOW]),
    ),
    "gemma4, nested": (
        parsing("gemma4"),
        '<|tool_call>call:now{a:[<|"|>}<|"|>,{b:null,c:true}],d:1.5,e:bare word}<tool_call|>',
        ("", "", [call("now", '{"a": ["}", {"b": null, "c": true}], "d": 1.5, "e": "bare word"}')]),
    ),
    "harmony, a call": (
        parsing("openai", reasoning=HARMONY),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|>',
        ("I look.", "Hm.", [OSLO]),
    ),
    "harmony, the recipient in the role": (
        parsing("openai", reasoning=HARMONY),
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}",
        ("", "", [NOW]),
    ),
    "harmony, an answer": (
        parsing(reasoning=HARMONY),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello there",
        ("Hello there", "Hm.", []),
    ),
    "harmony, arguments that are none": (
        parsing("openai", reasoning=HARMONY),
        "<|channel|>commentary to=functions.now<|message|>Oslo",
        ("Oslo", "", []),
    ),
    "harmony, no header": (parsing("openai", reasoning=HARMONY), "Hello", ("Hello", "", [])),
}
