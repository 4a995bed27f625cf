"""Chat templates as Hugging Face models bring them: Jinja, in a sandbox.

The environment is the one transformers documents for chat templates
(https://huggingface.co/docs/transformers/chat_templating): block trimming, loop controls, `raise_exception`,
`strftime_now`, a `tojson` without HTML escapes, and `{% generation %}` blocks, which only mark text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inflight_engine.models.tokens.conversation import Conversation

_OPEN_END = "\ue000open end\ue000 "
"""Marks the end of a last message that is to be continued. Its last space shows whether the template trims messages, as
in transformers."""


class ChatTemplate:
    """A compiled template.

    Args:
        template: the Jinja text.
        special_tokens: `bos_token`, `eos_token` and so on, which templates refer to.

    Raises:
        ValueError: the template does not compile.
    """

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format_: datetime.now().strftime(format_)
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, conversation: Conversation) -> str:
        """The prompt of a conversation.

        Raises:
            ValueError: the template refuses it (for instance roles that do not alternate), or leaves out the message
                that is to be continued.
        """
        messages = conversation.messages
        if conversation.open_ended:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last["content"] + _OPEN_END}]
        variables = {"documents": None, **conversation.arguments, **self._special_tokens}
        variables |= {
            "messages": messages,
            "tools": conversation.tools,
            "add_generation_prompt": conversation.continues,
        }
        try:
            text = self._template.render(variables)
        # Templates compute with what clients send: any error of theirs is one of the request.
        except Exception as error:
            raise ValueError(f"the model's chat template refused the messages: {error}") from error
        return _up_to_open_end(text) if conversation.open_ended else text


def _up_to_open_end(text: str) -> str:
    before, mark, after = text.rpartition(_OPEN_END.rstrip())
    if not mark:
        raise ValueError("the model's chat template leaves out the last message, which is to be continued")
    return before if after.startswith(" ") else before.rstrip()


class _GenerationBlock(Extension):
    """Jinja block `{% generation %}...{% endgeneration %}`, which renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
