"""The formats of a model: by name, else by what its files say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inflight_engine.formats.format import Format, Reasoning
from inflight_engine.formats.table import FORMATS, REASONINGS
from inflight_engine.formats.values import GEMMA_QUOTE

AUTO, NONE = "auto", "none"
"""Names beside those of formats: the model's files decide; there is none."""

TOOL_CALL_PARSERS = (AUTO, NONE, *dict.fromkeys(name for each in FORMATS for name in each.names))
REASONING_PARSERS = (AUTO, NONE, *dict.fromkeys(name for each in REASONINGS for name in each.names))


class ModelText(NamedTuple):
    """Texts of a model's files by which its formats are known.

    Attributes:
        response_template: keys and strings of the one in tokenizer_config.json, without the escapes of regular
            expressions; empty: there is none.
        chat_template: empty: there is none.
        model_type: of config.json.
    """

    response_template: str = ""
    chat_template: str = ""
    model_type: str = ""


UNKNOWN = ModelText()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The formats of a model. Attributes: `format`, `reasoning`: None: none is known."""

    format: Format | None = None
    reasoning: Reasoning | None = None

    @property
    def marks(self) -> str:
        """All texts that parsers look for, joined: special tokens with such names must be in the text."""
        form, reasoning = self.format, self.reasoning
        marks = [GEMMA_QUOTE]
        if form is not None:
            marks.append(repr((form.section, form.call)))
        if reasoning is not None:
            marks += (reasoning.open, reasoning.close)
        if (form is not None and form.channels) or (reasoning is not None and reasoning.channels):
            marks += ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
        return "\n".join(marks)


def choose(model: ModelText, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO) -> Chosen:
    """The formats of a model, or those that are named."""
    return Chosen(_format(model, tool_call_parser), _reasoning(model, reasoning_parser))


def _format(model: ModelText, name: str) -> Format | None:
    if name == NONE:
        return None
    known = [each for each in FORMATS if name in (AUTO, *each.names)]
    for text in (model.response_template, model.chat_template):
        for each in known:
            if each.markers and all(marker in text for marker in each.markers):
                return each
    return known[-1] if name != AUTO else next((each for each in known if model.model_type in each.model_types), None)


def _reasoning(model: ModelText, name: str) -> Reasoning | None:
    if name == NONE:
        return None
    if name != AUTO:
        return next(each for each in REASONINGS if name in each.names)
    texts = (model.response_template, model.chat_template)
    marked = (each for text in texts for each in REASONINGS if any(mark in text for mark in each.markers))
    return next(marked, None) or next((each for each in REASONINGS if model.model_type in each.model_types), None)
