"""Bodies of generation requests. Unsupported fields are rejected by name, never ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Discriminator, Field, Tag

from inflight_contract.errors import bad_request
from inflight_engine.grammars.sources import Source
from inflight_engine.server.bodies.fields import (
    FIRST_ERROR,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
    Body,
    GenerationFields,
    KVTransfer,
    PlainText,
    Prompt,
    TokenId,
    TokenIdList,
    only,
    replaced_by,
)
from inflight_engine.server.bodies.grammar_fields import IsSpecial, ResponseFormat, StructuredOutputs, source_of
from inflight_engine.server.bodies.unions import prompt_form, shape

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions."""

COMPLETION_MAX_LOGPROBS = 5
"""OpenAI's limit for /v1/completions."""


def _plain(prompt: str | list[int]) -> Prompt:
    return PlainText(prompt) if isinstance(prompt, str) else prompt


class GenerateRequest(GenerationFields):
    """Body of /v1/generate. `prompt`: text, or token ids. `logprobs`: as in vLLM, how many of the likeliest tokens."""

    prompt: Annotated[Annotated[str, Tag("text")] | Annotated[TokenIdList, Tag("list")], Discriminator(shape)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    def prompts(self) -> list[Prompt]:
        return [_plain(self.prompt)]

    def num_logprobs(self) -> int | None:
        return self.logprobs


class StreamOptions(Body):
    """`include_usage`: one more chunk at the end of a stream, with the token counts; `continuous_usage_stats` (vLLM's):
    every chunk has those of its choice up to there."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[object, only(False)] = None


class OpenAIFields(GenerationFields):
    """Fields that both OpenAI endpoints share.

    `response_format` and `structured_outputs` (vLLM's) bind the answer to a grammar.
    `user` is the caller's own note and changes no answer, as at OpenAI. `best_of` above `n`
    would choose among answers, which this server does not. `return_token_ids` (vLLM's): the answer holds the token ids
    of prompt and output too. `prompt_logprobs` (vLLM's): how many of the likeliest tokens to show for each token of the
    prompt. `logprob_token_ids` (vLLM's): tokens to show with each token in place of the likeliest. `max_tokens`: 0 asks
    for the prompt alone. `prompt_cache_key` is for a gateway's choice of a replica, `safety_identifier` the caller's
    note: neither changes an answer. `kv_transfer_params` (vLLM's): prompt and answer are computed by two engines.
    """

    model: str | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    best_of: Annotated[int, Field(ge=1)] | None = None
    return_token_ids: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Annotated[object, replaced_by("structured_outputs.json")] = None
    guided_regex: Annotated[object, replaced_by("structured_outputs.regex")] = None
    guided_choice: Annotated[object, replaced_by("structured_outputs.choice")] = None
    guided_grammar: Annotated[object, replaced_by("structured_outputs.grammar")] = None
    guided_whitespace_pattern: Annotated[object, replaced_by("structured_outputs.whitespace_pattern")] = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    logprob_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    kv_transfer_params: KVTransfer | None = None

    def check(self) -> None:
        """Validation across fields.

        Raises:
            ApiError: 400.
        """
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options: only allowed together with stream: true", "stream_options")
        if self.continuous_usage and not self.include_usage:
            message = "stream_options.continuous_usage_stats: only allowed together with include_usage: true"
            raise bad_request(message, "stream_options.continuous_usage_stats")
        if self.best_of is not None and self.best_of != (self.n or 1):
            message = "best_of: this server chooses no best answers; only best_of equal to n is supported"
            raise bad_request(message, "best_of", "unsupported_parameter")
        if self.logprob_token_ids is not None and (self.num_logprobs() is None or self.echoes()):
            message = "logprob_token_ids: only allowed together with logprobs, and without echo"
            raise bad_request(message, "logprob_token_ids")
        if self.max_tokens == 0 and not self.echoes() and self.prompt_logprobs is None:
            message = "max_tokens: must be at least 1; 0 is only allowed together with echo or prompt_logprobs"
            raise bad_request(message, "max_tokens")

    def source(self) -> str | None:
        asked = self.kv_transfer_params
        named = None if asked is None or not asked.do_remote_prefill else asked.remote_engine_id
        return super().source() or named

    @property
    def decoded_elsewhere(self) -> bool:
        """Another engine will want the keys and values of the prompt."""
        return self.kv_transfer_params is not None and bool(self.kv_transfer_params.do_remote_decode)

    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    def named_logprobs(self) -> Sequence[int]:
        return self.logprob_token_ids or ()

    def grammar(self, is_special: IsSpecial) -> Source | None:
        return source_of(self.response_format, self.structured_outputs, is_special)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


class CompletionRequest(OpenAIFields):
    """Body of /v1/completions. Several prompts make several answers, those of the first prompt first. `echo`: answers
    begin with their prompt, and its log-probabilities where `logprobs` are asked for."""

    default_max_tokens: ClassVar[int | None] = COMPLETION_MAX_TOKENS

    prompt: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[TokenIdList, Tag("token_ids")]
        | Annotated[list[str], FIRST_ERROR, Tag("texts")]
        | Annotated[list[TokenIdList], FIRST_ERROR, Tag("lists")],
        Discriminator(prompt_form),
    ]
    logprobs: Annotated[int, Field(ge=0, le=COMPLETION_MAX_LOGPROBS)] | None = None

    echo: bool | None = None
    suffix: Annotated[object, only("")] = None
    add_special_tokens: Annotated[object, only(True)] = None

    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str):
            return [_plain(self.prompt)]
        token_ids = [item for item in self.prompt if isinstance(item, int)]
        several = [_plain(item) for item in self.prompt if not isinstance(item, int)]
        return [*several] if several else [token_ids]

    def num_logprobs(self) -> int | None:
        return self.logprobs

    def num_prompt_logprobs(self) -> int | None:
        """The largest number shown anywhere: an echoed prompt has those of `logprobs`."""
        counts = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in counts if count is not None), default=None)

    def echoes(self) -> bool:
        return bool(self.echo)
