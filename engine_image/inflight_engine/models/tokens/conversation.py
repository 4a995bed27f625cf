"""Conversations as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input of a chat template.

    Attributes:
        messages: `role` and `content` of each, and where they are there `name`, `tool_calls`, `tool_call_id` and the
            reasoning.
        tools: in OpenAI's shape, for the template; None: none.
        arguments: further variables of the template, such as `enable_thinking`; none of those above.
        continues: the prompt ends at the start of an assistant's answer.
        open_ended: the prompt ends with the content of the last message, which the answer continues.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = True
    open_ended: bool = False
