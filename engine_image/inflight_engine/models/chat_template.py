"""Chat templates as Hugging Face models bring them: Jinja, in a sandbox.

The environment is the one transformers documents for chat templates
(https://huggingface.co/docs/transformers/chat_templating): block trimming, loop controls, `raise_exception`,
`strftime_now`, a `tojson` without HTML escapes, and `{% generation %}` blocks, which only mark text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


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

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        continues: bool = True,
    ) -> str:
        """Render the prompt for these messages; with `continues` it ends where the assistant's answer begins.

        Raises:
            ValueError: the template refuses them (for instance roles that do not alternate).
        """
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=continues,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, RecursionError) as error:
            raise ValueError(f"the model's chat template refused the messages: {error}") from error


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
