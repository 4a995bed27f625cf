"""Chat templates get what Hugging Face templates rely on, and no more."""

import pytest

from inflight_engine.models.tokens.chat_template import ChatTemplate
from inflight_engine.models.tokens.conversation import Conversation

MESSAGES = [{"role": "user", "content": "<b>"}]


def render(template, messages=MESSAGES, special_tokens=None, **conversation):
    return ChatTemplate(template, special_tokens or {}).render(Conversation(messages, **conversation))


def test_tools_are_shown_and_the_answer_need_not_begin():
    template = "{{ tools | tojson }}{% if add_generation_prompt %}go{% endif %}"
    assert render(template, tools=[{"name": "f"}], continues=False) == '[{"name": "f"}]'
    assert render(template) == "nullgo"


def test_arguments_are_variables_that_replace_nothing_of_the_conversation():
    template = "{{ enable_thinking }} {{ bos_token }} {{ messages[0].content }} {{ missing is defined }}"
    arguments = {"enable_thinking": False, "bos_token": "x", "messages": []}
    assert render(template, special_tokens={"bos_token": "<s>"}, arguments=arguments) == "False <s> <b> False"


@pytest.mark.parametrize(
    ("shown", "open_end"),
    [("{{ m.content }}", "a b "), ("{{ m.content | trim }}", "a b"), ("{{ m.content }}!", "a b ")],
)
def test_an_open_ended_message_ends_the_prompt_with_its_content(shown, open_end):
    template = "{% for m in messages %}<" + shown + "></s>{% endfor %}"
    messages = [{"role": "user", "content": "a b "}, {"role": "assistant", "content": "a b "}]
    closed = render(template, messages[:1])
    assert render(template, messages, continues=False, open_ended=True) == f"{closed}<{open_end}"


def test_a_template_without_the_last_message_cannot_continue_it():
    with pytest.raises(ValueError, match="leaves out the last message"):
        render("x", open_ended=True)


@pytest.mark.parametrize("computed", ["{{ 1 // n }}", "{{ 'x'.rjust('a') }}", "{{ [1][n:][3] + 1 }}"])
def test_any_error_of_a_template_is_a_refusal(computed):
    with pytest.raises(ValueError, match="refused the messages"):
        render(computed, arguments={"n": 0})


def test_blocks_leave_no_blank_lines():
    assert render("{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}") == "user\n"


def test_special_tokens_and_the_generation_prompt_are_there():
    assert (
        render("{{ bos_token }}{% if add_generation_prompt %}go{% endif %}", special_tokens={"bos_token": "<s>"})
        == "<s>go"
    )


def test_json_is_not_escaped_for_html():
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "<b>"}]'


def test_loops_can_be_left():
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"


def test_generation_blocks_render_their_body():
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


def test_the_date_is_there():
    assert len(render("{{ strftime_now('%Y') }}")) == 4


def test_a_refusal_of_the_template_reaches_the_caller():
    with pytest.raises(ValueError, match="refused the messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_an_undefined_operation_is_a_refusal_too():
    with pytest.raises(ValueError, match="refused the messages"):
        render("{{ messages[0]['content'] + 1 }}")


def test_a_broken_template_says_so():
    with pytest.raises(ValueError, match="does not compile"):
        ChatTemplate("{% if %}", {})


def test_the_sandbox_holds():
    with pytest.raises(ValueError, match="refused"):
        render("{{ messages.__class__.__base__.__subclasses__() }}")
    with pytest.raises(ValueError, match="refused"):
        render("{{ messages.append(1) }}")
