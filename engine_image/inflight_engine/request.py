"""A request as the engine process knows it: token ids and numbers, never text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inflight_contract.kv_blocks import KVSource
from inflight_settings.scheduling import DEFAULT_CLASS

TokenIds = npt.NDArray[np.int32]
NO_TOKENS: TokenIds = np.empty(0, np.int32)

MAX_LOGIT_BIAS = 1024
"""Maximum number of tokens that a request may bias."""


class ForcedRun(NamedTuple):
    """Tokens that a slot's grammar leaves as the only ones after its latest token, one after the other.

    Attributes:
        token_ids: int32, at least one; none of them ends the request but the last where `ends`.
        ends: the text is complete with the last of them.
    """

    slot: int
    token_ids: TokenIds
    ends: bool


class RequestState(StrEnum):
    """Where a request is; only the scheduler moves it."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Lost its slot and blocks; what of its tokens is found nowhere will be recomputed."""
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. `stop` and `length` are OpenAI's names; the others never reach a client as an answer."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    """Its part of a step, or the whole step, found no memory."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning of a model, marked by tokens: a request's grammar begins after it.

    Attributes:
        open: the tokens that begin it.
        close: the tokens that end it.
        begun: the prompt ends inside of it.
        budget: most tokens inside of it; then `close` follows. None: any number.
        then: tokens that follow `close` where a grammar follows them.
    """

    open: tuple[int, ...]
    close: tuple[int, ...]
    begun: bool = False
    budget: int | None = None
    then: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose each next token, and when to stop. Meanings are those of OpenAI's and vLLM's parameters.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        min_tokens: no stop token is sampled before so many tokens.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: keep the smallest set of tokens whose probabilities sum to at least this, in (0, 1].
        top_k: keep the k likeliest tokens; 0 keeps all.
        min_p: drop tokens whose probability is below this share of the likeliest one's, in [0, 1].
        repetition_penalty: logits of tokens seen in prompt or output are divided by it where positive, multiplied where
            negative (Keskar et al. 2019, CTRL); 1 changes nothing.
        presence_penalty: subtracted once from the logit of each token seen in the output.
        frequency_penalty: subtracted from a token's logit for each time it is in the output.
        logit_bias: (token id, what is added to its logit), each token once.
        seed: the request's own random stream: what is drawn from it does not depend on what else is in the batch. The
            logits it meets do in their last bits, which in bfloat16 and float16 is enough to change a token.
        stop_token_ids: end as `stop` when one is sampled; the token itself is not part of the text.
            The server adds the model's end-of-sequence tokens here unless the request ignores them.
        logprobs: report each token's log-probability and those of this many likeliest tokens; None: report nothing.
            They are the model's own: taken before temperature, penalties and filters.
        logprob_token_ids: report those of these tokens in place of the likeliest, where `logprobs` is not None.
        prompt_logprobs: the same for each token of the prompt after the first. Such a request finds no cached prefix of
            others, because all of its prompt has to be computed, and others find none of its own.
        grammar: language of the text, as llguidance serializes it (`LLMatcher.grammar_from_json_schema`,
            `grammar_from_lark` and `grammar_from_regex`): only tokens that continue a text of it are sampled, and a
            token of `stop_token_ids` only where the text is complete. Requests with the same grammar share what it
            compiles to. None: all tokens.
        thinking: before the text of the grammar, or bounded; None: there is none, or any.
        bad_words: sequences of token ids, none empty: the last token of one is not sampled after its other tokens.
        allowed_tokens: no other tokens are sampled, as `token_mask` writes them; empty: all are allowed.
        pooled: report the hidden state of the last token of its prompt, with the first token.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    grammar: str | None = None
    thinking: Thinking | None = None
    logprob_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_tokens: bytes = b""
    pooled: bool = False

    @property
    def has_token_rules(self) -> bool:
        """`bad_words` or `allowed_tokens` restrict its tokens."""
        return bool(self.bad_words or self.allowed_tokens)

    @property
    def is_masked(self) -> bool:
        """A mask says which tokens may come next; it has `min_tokens` in it."""
        return self.grammar is not None or self.thinking is not None or self.has_token_rules


def token_mask(token_ids: npt.ArrayLike) -> bytes:
    """Tokens as bits, which a message has room for: those of id 8 i to 8 i + 7 are in byte i, the lowest first. The
    length is a multiple of four bytes."""
    ids = np.asarray(token_ids, np.int64)
    bits = np.zeros((int(ids.max()) // 32 + 1) * 32, np.bool_)
    bits[ids] = True
    return np.packbits(bits, bitorder="little").tobytes()


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling parameters of a request, the same value from its body to the scheduler.

    Attributes:
        service_class: name of its service class.
        priority: for the `priority` policy; a smaller number is served earlier.
        tenant: owner of the request, for the `fair` policy; tenants never share cached prefixes.
        cache_salt: only requests with equal salts (and tenants) share cached prefixes.
        predicted_tokens: output tokens that it is expected to generate, for the `sjf` policy; None: `max_tokens`.
        resumes: where it comes with tokens, it goes before new requests of its class, and its class is not charged for
            what its prefill computes. False: it waits and is charged as a new one.
    """

    service_class: str = DEFAULT_CLASS
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    predicted_tokens: int | None = None
    resumes: bool = True


@dataclass(slots=True, eq=False)
class Request:
    """The whole state of a request inside the engine process.

    Attributes:
        prompt_token_ids: int32 [num_prompt_tokens].
        arrival_time: seconds on the system-wide monotonic clock.
        order: place in the order of arrival; the scheduler sets it when the request is added.
        latest_start: time by which it must start to keep its TTFT target, on the clock of `arrival_time`; the scheduler
            sets it when the request is added. Infinite: it has no target, or the policy does not order by it.
        external_id: the client's id of the request, for log lines.
        output_token_ids: tokens generated so far, kept here only while the request has no slot. A continued request
            comes with those that an earlier engine process generated, fewer than `max_tokens`.
        compiled: what its grammar compiles to, kept until it ends.
        kv_source: engine that may have its keys and values; None: none is known.
        block_hashes: chained content hashes of its leading full blocks, prompt first; empty without a prefix cache.
    """

    request_id: int
    prompt_token_ids: TokenIds
    sampling: SamplingParams
    arrival_time: float
    scheduling: Scheduling = Scheduling()
    external_id: str = ""
    kv_source: KVSource | None = None

    state: RequestState = RequestState.WAITING
    slot: int = -1
    order: int = -1
    latest_start: float = math.inf
    output_token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    num_preemptions: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    compiled: object = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, while it has no slot."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def token_ids(self) -> TokenIds:
        """Known tokens, prompt and output, while it is not decoding: int32 [num_tokens]."""
        if not len(self.output_token_ids):
            return self.prompt_token_ids
        return np.concatenate([self.prompt_token_ids, self.output_token_ids])

    @property
    def max_total_tokens(self) -> int:
        """Maximum number of tokens: prompt plus `max_tokens`."""
        return len(self.prompt_token_ids) + self.sampling.max_tokens

    @property
    def predicted_output_tokens(self) -> int:
        predicted = self.scheduling.predicted_tokens
        return self.sampling.max_tokens if predicted is None else predicted
