"""Bodies of generation requests. What is not supported is refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from inflight_engine.server.errors import bad_request
from inflight_engine.server.fields import (
    FIRST_ERROR,
    MAX_TOP_LOGPROBS,
    Body,
    Conversation,
    GenerationFields,
    Prompt,
    Text,
    TokenIdList,
    only,
)

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions."""

COMPLETION_MAX_LOGPROBS = 5
"""OpenAI's, for /v1/completions."""


class GenerateRequest(GenerationFields):
    """Body of /v1/generate. `prompt`: text, or token ids. `logprobs`: as in vLLM, how many of the likeliest tokens."""

    prompt: Text | TokenIdList
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    def prompts(self) -> list[Prompt]:
        return [self.prompt]

    def num_logprobs(self) -> int | None:
        return self.logprobs


class StreamOptions(Body):
    """`include_usage`: one more chunk at the end of a stream, with the token counts."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[object, only(False)] = None


class OpenAIFields(GenerationFields):
    """What both OpenAI endpoints share.

    `user` is the caller's own note of whom it asks for; it changes no answer, at OpenAI's as here. `best_of` above `n`
    would choose among answers, which this server does not.
    """

    model: str | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    best_of: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[object, only(0)] = None

    def check(self) -> None:
        """What concerns several fields.

        Raises:
            ApiError: 400.
        """
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options: only allowed together with stream: true", "stream_options")
        if self.best_of is not None and self.best_of != (self.n or 1):
            message = "best_of: this server chooses no best answers; only best_of equal to n is supported"
            raise bad_request(message, "best_of", "unsupported_parameter")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(Body):
    type: Literal["text"]
    text: Text


class ChatMessage(Body):
    """One message. The null fields are those that OpenAI's SDK sends back with an assistant's message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], FIRST_ERROR]
    name: Annotated[object, only()] = None
    refusal: Annotated[object, only()] = None
    annotations: Annotated[object, only([])] = None
    audio: Annotated[object, only()] = None
    tool_calls: Annotated[object, only([])] = None
    function_call: Annotated[object, only()] = None

    def plain(self) -> dict[str, str]:
        """As chat templates want it: text parts joined by newlines, OpenAI's newer `developer` as `system`."""
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ChatCompletionRequest(OpenAIFields):
    """Body of /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    response_format: Annotated[object, only({"type": "text"})] = None
    tools: Annotated[object, only([])] = None
    tool_choice: Annotated[object, only("none", "auto")] = None
    parallel_tool_calls: Annotated[object, only(True, False)] = None
    functions: Annotated[object, only([])] = None
    function_call: Annotated[object, only("none", "auto")] = None
    modalities: Annotated[object, only(["text"])] = None
    audio: Annotated[object, only()] = None
    prediction: Annotated[object, only()] = None
    reasoning_effort: Annotated[object, only("none")] = None
    verbosity: Annotated[object, only()] = None
    service_tier: Annotated[object, only("auto", "default")] = None
    store: Annotated[object, only(False)] = None
    metadata: Annotated[object, only({})] = None
    web_search_options: Annotated[object, only()] = None

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise bad_request("max_tokens: differs from max_completion_tokens; send one of them", "max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs: only allowed together with logprobs: true", "top_logprobs")

    def prompts(self) -> list[Prompt]:
        return [Conversation([message.plain() for message in self.messages])]

    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def asked_max_tokens(self) -> int | None:
        """`max_completion_tokens`, or `max_tokens`, its older name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(OpenAIFields):
    """Body of /v1/completions. Several prompts make several answers, those of the first prompt first."""

    default_max_tokens: ClassVar[int | None] = COMPLETION_MAX_TOKENS

    prompt: Text | TokenIdList | Annotated[list[Text], FIRST_ERROR] | Annotated[list[TokenIdList], FIRST_ERROR]
    logprobs: Annotated[int, Field(ge=0, le=COMPLETION_MAX_LOGPROBS)] | None = None

    echo: Annotated[object, only(False)] = None
    suffix: Annotated[object, only("")] = None

    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        token_ids = [item for item in self.prompt if isinstance(item, int)]
        several = [item for item in self.prompt if not isinstance(item, int)]
        return [*several] if several else [token_ids]

    def num_logprobs(self) -> int | None:
        return self.logprobs
