"""Bodies of generation requests. What is not supported is refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from inflight_engine.server.errors import bad_request

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128


def only(*neutral: object) -> AfterValidator:
    """A parameter that is not supported: null, or a value that asks for nothing, is accepted; all else is refused."""

    def check(value: Any) -> Any:
        if value is None or any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral
        ):
            return value
        raise PydanticCustomError("unsupported_parameter", "this parameter is not supported by this server")

    return AfterValidator(check)


def _is_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_text", "must be text, and holds half of a surrogate pair") from None
    return value


TokenId = Annotated[int, Field(ge=0)]
Text = Annotated[str, AfterValidator(_is_text)]
"""JSON can write strings that are no Unicode text; tokenizers take none of them."""
StopString = Annotated[Text, Field(min_length=1)]


class SamplingFields(BaseModel):
    """What all generation endpoints share.

    `top_k`: 0 or -1 keeps all tokens. `stop`: strings that end the answer and are not part of it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None

    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class GenerateRequest(SamplingFields):
    """Body of /v1/generate. `prompt`: text, or token ids."""

    prompt: Text | list[TokenId]


class StreamOptions(BaseModel):
    """`include_usage`: one more chunk at the end of a stream, with the token counts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: Annotated[object, only(False)] = None


class OpenAIFields(SamplingFields):
    """What both OpenAI endpoints share; `ignore_eos` and `stop_token_ids` as in vLLM.

    `user` is the caller's own note of whom it asks for; it changes no answer, at OpenAI's as here.
    """

    model: str | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    user: str | None = None

    n: Annotated[object, only(1)] = None
    best_of: Annotated[object, only(1)] = None
    presence_penalty: Annotated[object, only(0)] = None
    frequency_penalty: Annotated[object, only(0)] = None
    repetition_penalty: Annotated[object, only(1)] = None
    min_p: Annotated[object, only(0)] = None
    min_tokens: Annotated[object, only(0)] = None
    logit_bias: Annotated[object, only({})] = None


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    """One message. The null fields are those that OpenAI's SDK sends back with an assistant's message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]
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

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    logprobs: Annotated[object, only(False)] = None
    top_logprobs: Annotated[object, only(0)] = None
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


class CompletionRequest(OpenAIFields):
    """Body of /v1/completions. `max_tokens` is 16 unless given, as OpenAI has it."""

    prompt: Text | list[TokenId] | list[Text] | list[list[TokenId]]

    logprobs: Annotated[object, only()] = None
    echo: Annotated[object, only(False)] = None
    suffix: Annotated[object, only("")] = None

    def one_prompt(self) -> str | list[int]:
        """Raises: ApiError: 400, there are several."""
        if isinstance(self.prompt, str):
            return self.prompt
        tokens = [token for token in self.prompt if isinstance(token, int)]
        if len(tokens) != len(self.prompt):
            raise bad_request("prompt: a list of several prompts is not supported; send a request for each", "prompt")
        return tokens
