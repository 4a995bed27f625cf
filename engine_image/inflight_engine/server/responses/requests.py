"""Bodies of /v1/responses, and the chat requests that they mean.

Format: https://platform.openai.com/docs/api-reference/responses, https://www.openresponses.org/specification
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from inflight_contract.errors import bad_request
from inflight_engine.server.bodies.chat_schema import ArgumentsText, FunctionName, NamedTool
from inflight_engine.server.bodies.converted import ConvertedChat, as_chat, shared_fields
from inflight_engine.server.bodies.fields import (
    FIRST_ERROR,
    MAX_TOP_LOGPROBS,
    Body,
    Continuation,
    SchedulingFields,
    only,
)
from inflight_engine.server.bodies.grammar_fields import JsonObjectFormat, Schema, TextFormat
from inflight_engine.server.bodies.unions import kinds, shape

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tools": "tools",
    "tool_choice": "tool_choice",
}
"""Fields of chat requests, by their names here."""


class TextPart(Body):
    """Text of a message, of a tool's result or of reasoning."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    annotations: object = None
    logprobs: object = None


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


_PARTS = ("input_text", "output_text", "refusal", "text")

Part: TypeAlias = Annotated[Annotated[TextPart | RefusalPart, Field(discriminator="type")], kinds("parts", *_PARTS)]
Content: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], FIRST_ERROR, Tag("list")], Discriminator(shape)
]
ReasoningParts: TypeAlias = Annotated[
    list[Annotated[TextPart, kinds("parts", "reasoning_text", "summary_text", "text")]], FIRST_ERROR
]


class _Item(Body):
    """An item of the conversation. Its `id` and `status` are those of an earlier answer."""

    id: str | None = None
    status: str | None = None


class MessageItem(_Item):
    """A message. `phase`: OpenAI's label of an assistant's message, which no chat template shows."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(_Item):
    """A call of a function by the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: ArgumentsText
    namespace: Annotated[object, only()] = None
    caller: Annotated[object, only({"type": "direct"})] = None


class ResultItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    caller: Annotated[object, only({"type": "direct"})] = None


class ReasoningItem(_Item):
    """Reasoning of the model: its text, or the summary of it."""

    type: Literal["reasoning"]
    summary: ReasoningParts | None = None
    content: ReasoningParts | None = None
    encrypted_content: Annotated[object, only("")] = None

    @property
    def text(self) -> str:
        return _text(self.content or self.summary or [])


Item: TypeAlias = Annotated[
    Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Field(discriminator="type")],
    kinds("items", "message", "function_call", "function_call_output", "reasoning", default="message"),
]
Items: TypeAlias = Annotated[list[Item], Field(min_length=1, fail_fast=True)]


class FunctionTool(Body):
    """A function. `description` and `parameters` as in chat requests."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Body):
    type: Literal["function"]
    name: str


class AllowedTools(Body):
    """Limits the choice to some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required", "none"] = "auto"
    tools: Annotated[list[NamedFunction], Field(min_length=1, fail_fast=True)]


class JsonSchemaText(Body):
    """A schema, as in chat requests without the level of `json_schema`."""

    type: Literal["json_schema"]
    name: str
    schema_: Annotated[Schema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = False


class TextOptions(Body):
    format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaText, Field(discriminator="type")] | None = None
    verbosity: Annotated[object, only("medium")] = None


class ReasoningOptions(Body):
    """`summary`: the reasoning is shown as it is, so every kind of summary is accepted and none is written."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Body):
    include_obfuscation: Annotated[object, only(False)] = None


class ResponsesRequest(SchedulingFields):
    """Body of /v1/responses.

    `store`: responses are not stored, whatever it says, and the response says so. `include`: reasoning is shown as
    text, so none is encrypted; log-probabilities are part of the text, in a stream of its deltas only. `metadata`,
    `user`, `safety_identifier`: the caller's own notes.
    """

    model: str
    input: Annotated[Annotated[str, Tag("text")] | Annotated[Items, Tag("list")], Discriminator(shape)]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_output_tokens: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    tools: Annotated[list[Annotated[FunctionTool, kinds("tools", "function")]], FIRST_ERROR] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None

    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: object = None
    service_tier: str | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncation: Annotated[object, only("disabled")] = None
    background: Annotated[object, only(False)] = None
    previous_response_id: Annotated[object, only()] = None
    conversation: Annotated[object, only()] = None
    prompt: Annotated[object, only()] = None
    context_management: Annotated[object, only()] = None
    inflight_continuation: Continuation | None = None

    def chat(self) -> ConvertedChat:
        """The chat request that this means.

        Raises:
            ApiError: 400, in words of chat requests.
        """
        tools, choice = self._tools()
        scored = "message.output_text.logprobs" in (self.include or ())
        if self.top_logprobs and not scored:
            message = "top_logprobs: only allowed together with message.output_text.logprobs in include"
            raise bad_request(message, "top_logprobs")
        values = {
            **shared_fields(self),
            "messages": self._messages(),
            "model": self.model,
            "stream": self.stream,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logprobs": scored or None,
            "top_logprobs": self.top_logprobs if scored else None,
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self._format(),
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "service_tier": self.service_tier,
            "inflight_continuation": self.inflight_continuation,
        }
        return as_chat(values)

    def _messages(self) -> list[dict[str, Any]]:
        """Messages of the conversation. Many templates take one system message, at the start: it has the instructions
        and the first items."""
        head, items = [self.instructions] if self.instructions else [], self.input
        if isinstance(items, str):
            items = [MessageItem(type="message", role="user", content=items)]
        first = [*takewhile(lambda item: item.type == "message" and item.role in ("system", "developer"), items)]
        head += [_text(item.content) for item in first if isinstance(item, MessageItem)]
        messages: list[dict[str, Any]] = [{"role": "system", "content": "\n\n".join(head)}] if head else []
        for item in items[len(first) :]:
            _add(messages, item)
        return messages

    def _tools(self) -> tuple[list[dict[str, Any]] | None, Any]:
        """Tools and the choice of one. Of `allowed_tools` the others are left out.

        Raises:
            ApiError: 400, a tool that is allowed does not exist.
        """
        tools, choice = self.tools or [], self.tool_choice
        if isinstance(choice, AllowedTools):
            names = {each.name for each in choice.tools}
            unknown = names.difference(each.name for each in tools)
            if unknown:
                raise bad_request(f"tool_choice.tools: {min(unknown)!r} is none of the tools", "tool_choice.tools")
            tools, choice = [each for each in tools if each.name in names], choice.mode
        shown = [
            {"type": "function", "function": each.model_dump(exclude={"type"}, exclude_none=True)} for each in tools
        ]
        if isinstance(choice, NamedFunction):
            return shown or None, NamedTool(type="function", function=FunctionName(name=choice.name))
        return shown or None, choice

    def _format(self) -> Mapping[str, Any] | None:
        form = None if self.text is None else self.text.format
        if not isinstance(form, JsonSchemaText):
            return None if form is None else form.model_dump()
        described = form.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
        return {"type": "json_schema", "json_schema": described}


def _text(parts: str | Iterable[TextPart | RefusalPart]) -> str:
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


def _add(messages: list[dict[str, Any]], item: MessageItem | CallItem | ResultItem | ReasoningItem) -> None:
    """Add an item. Reasoning, text and calls of one turn of the assistant are one message."""
    last = messages[-1] if messages else {}
    match item:
        case MessageItem(role="assistant"):
            if last.get("role") != "assistant" or "content" in last or "tool_calls" in last:
                messages.append(last := {"role": "assistant"})
            last["content"] = _text(item.content)
        case MessageItem():
            messages.append({"role": item.role, "content": _text(item.content)})
        case ReasoningItem():
            if item.text:
                messages.append({"role": "assistant", "reasoning": item.text})
        case CallItem():
            if last.get("role") != "assistant":
                messages.append(last := {"role": "assistant"})
            call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
            last.setdefault("tool_calls", []).append(call)
        case ResultItem():
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
