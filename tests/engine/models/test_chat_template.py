"""Chat templates get what Hugging Face templates rely on, and no more."""

import pytest

from inflight_engine.models.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "<b>"}]


def render(template, messages=MESSAGES, **special_tokens):
    return ChatTemplate(template, special_tokens).render(messages)


def test_tools_are_shown_and_the_answer_need_not_begin():
    template = ChatTemplate("{{ tools | tojson }}{% if add_generation_prompt %}go{% endif %}", {})
    assert template.render(MESSAGES, [{"name": "f"}], continues=False) == '[{"name": "f"}]'
    assert template.render(MESSAGES) == "nullgo"


def test_blocks_leave_no_blank_lines():
    assert render("{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}") == "user\n"


def test_special_tokens_and_the_generation_prompt_are_there():
    assert render("{{ bos_token }}{% if add_generation_prompt %}go{% endif %}", bos_token="<s>") == "<s>go"


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
