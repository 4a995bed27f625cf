"""Bodies of /v1/messages, and the chat requests that they mean.

Format: https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from inflight_engine.server.bodies.chat_schema import holds_text
from inflight_engine.server.bodies.converted import ConvertedChat, as_chat, shared_fields
from inflight_engine.server.bodies.fields import (
    FIRST_ERROR,
    MAX_STOP_STRINGS,
    Body,
    Continuation,
    SchedulingFields,
    StopString,
    only,
)
from inflight_engine.server.bodies.grammar_fields import Schema
from inflight_engine.server.bodies.unions import kinds, shape

NAMES = {
    "messages": "messages",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
    "tools": "tools",
    "tool_choice": "tool_choice",
}
"""Fields of chat requests, by their names here."""


class _Cached(Body):
    """`cache_control`: prompts are cached by their prefixes, whatever it says."""

    cache_control: object = None


class TextBlock(_Cached):
    type: Literal["text"]
    text: str
    citations: Annotated[object, only([])] = None


class ThinkingBlock(Body):
    """Thinking of the model. Its signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Body):
    """Thinking that only Anthropic can read; it is left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Cached):
    """A call of a tool by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[dict[str, Any], AfterValidator(holds_text)]
    caller: Annotated[object, only({"type": "direct"})] = None


Texts: TypeAlias = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[Annotated[TextBlock, kinds("blocks", "text")]], FIRST_ERROR, Tag("list")],
    Discriminator(shape),
]


class ToolResultBlock(_Cached):
    """The result of a call. `is_error`: the text says what failed, and no chat template has a place for more."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = ""
    is_error: bool | None = None


Block: TypeAlias = Annotated[
    Annotated[
        TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
        Field(discriminator="type"),
    ],
    kinds("blocks", "text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
]


class Message(Body):
    """A message. Thinking and calls are the assistant's, and results the user's."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[Block], FIRST_ERROR, Tag("list")], Discriminator(shape)
    ]

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Message:
        for block in () if isinstance(self.content, str) else self.content:
            if block.type != "text" and self.role != ("user" if block.type == "tool_result" else "assistant"):
                said = {"kind": block.type, "role": self.role}
                raise PydanticCustomError("wrong_role", "a message of role {role} must not have {kind} blocks", said)
        return self


class Tool(_Cached):
    """A function. The fields that concern Anthropic's own tools are accepted at their defaults."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: Annotated[dict[str, Any], AfterValidator(holds_text)]
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: Annotated[object, only(["direct"])] = None
    defer_loading: Annotated[object, only(False)] = None


class ToolChoice(Body):
    """`name`: with `type: tool`, which it names."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """`display`: the thinking is shown as it is, unless it is `omitted`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(Body):
    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(Body):
    user_id: str | None = None


class CountTokensRequest(Body):
    """Body of /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    system: Texts | None = None
    tools: Annotated[list[Annotated[Tool, kinds("tools", "custom", default="custom")]], FIRST_ERROR] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: object = None
    context_management: object = None

    def counted(self) -> ConvertedChat:
        """A chat request with the same prompt.

        Raises:
            ApiError: 400, in words of chat requests.
        """
        return as_chat(self._shared())

    def _shared(self) -> dict[str, Any]:
        """Fields of a chat request that decide on the prompt."""
        choice, thinking, config = self.tool_choice, self.thinking, self.output_config
        messages = self._messages()
        effort = None if config is None else config.effort
        last = messages[-1]
        prefilled = last["role"] == "assistant" and bool(last.get("content")) and not last.get("tool_calls")
        return {
            "model": self.model,
            "messages": messages,
            "tools": [_function(each) for each in self.tools or ()] or None,
            "tool_choice": None if choice is None else _choice(choice),
            "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
            "reasoning_effort": effort,
            "chat_template_kwargs": _template_arguments(thinking),
            "continue_final_message": prefilled or None,
        }

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _text(self.system)})
        for message in self.messages:
            _add(messages, message)
        return messages


class MessagesRequest(CountTokensRequest, SchedulingFields):
    """Body of /v1/messages. `context_management`: nothing is ever removed from a conversation."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: str | None = None
    metadata: Metadata | None = None
    container: Annotated[object, only()] = None
    inference_geo: Annotated[object, only()] = None
    mcp_servers: Annotated[object, only([])] = None
    inflight_continuation: Continuation | None = None

    def chat(self) -> ConvertedChat:
        """The chat request that this means.

        Raises:
            ApiError: 400, in words of chat requests.
        """
        form = None if self.output_config is None else self.output_config.format
        described = None if form is None else {"name": "output", "schema": form.schema_, "strict": True}
        budget = None if self.thinking is None else self.thinking.budget_tokens
        values = {
            **self._shared(),
            **shared_fields(self),
            "stream": self.stream,
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "response_format": None if described is None else {"type": "json_schema", "json_schema": described},
            "thinking_token_budget": budget,
            "service_tier": "auto" if self.service_tier == "standard_only" else self.service_tier,
            "inflight_continuation": self.inflight_continuation,
        }
        return as_chat(values)


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _written(value: dict[str, Any]) -> str:
    # Not msgspec: numbers may be larger than it encodes.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return "required" if choice.type == "any" else choice.type


def _template_arguments(thinking: Thinking | None) -> dict[str, bool] | None:
    """Variables of the chat template. Without `thinking` and with `adaptive`, its default holds."""
    if thinking is None or thinking.type == "adaptive":
        return None
    return {"enable_thinking": thinking.type == "enabled"}


def _add(messages: list[dict[str, Any]], message: Message) -> None:
    """Add a message: each result of a tool is one of its own, before the text beside it."""
    if isinstance(message.content, str):
        messages.append({"role": message.role, "content": message.content})
        return
    texts: list[str] = []
    thoughts: list[str] = []
    plain: dict[str, Any] = {"role": message.role}
    for block in message.content:
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=text):
                thoughts.append(text)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": _written(block.input)}
                plain.setdefault("tool_calls", []).append({"id": block.id, "function": function})
            case ToolResultBlock():
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
                messages.append(result)
    if thoughts:
        plain["reasoning"] = "".join(thoughts)
    if texts or "tool_calls" in plain or "reasoning" in plain:
        messages.append({**plain, "content": "\n".join(texts)} if texts else plain)
    elif not any(isinstance(block, ToolResultBlock) for block in message.content):
        messages.append({**plain, "content": ""})
