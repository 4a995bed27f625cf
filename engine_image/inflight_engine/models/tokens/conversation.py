"""Conversations as chat templates take them, and what is wanted of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


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


class TooManyTokensError(ValueError):
    """A text has more tokens than were asked for.

    Attributes:
        count: its tokens; None: they were not counted.
    """

    def __init__(self, most: int, count: int | None = None) -> None:
        super().__init__(f"must not have more than {most} tokens")
        self.most = most
        self.count = count


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tokens of a text that are wanted.

    Attributes:
        most: their number.
        cut: the end of a text with more tokens that may be left out; some more than `most` may remain. Empty: a text
            with more is refused.
    """

    most: int
    cut: Literal["", "left", "right"] = ""
