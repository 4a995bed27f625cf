"""A request as the engine process knows it: token ids and numbers, never text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]


class RequestState(StrEnum):
    """Where a request is; only the scheduler moves it."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Lost its slot and blocks; its tokens will be recomputed."""
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. `stop` and `length` are OpenAI's names; the others never reach a client as an answer."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose each next token, and when to stop.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: keep the smallest set of tokens whose probabilities sum to at least this, in (0, 1].
        top_k: keep the k likeliest tokens; 0 keeps all.
        seed: the request's own random stream: what is drawn from it does not depend on what else is in the batch. The
            logits it meets do in their last bits, which in bfloat16 and float16 is enough to change a token.
        stop_token_ids: end as `stop` when one is sampled; the token itself is not part of the text.
            The server adds the model's end-of-sequence tokens here unless the request ignores them.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Request:
    """One request's whole state inside the engine process.

    Attributes:
        prompt_token_ids: int32 [num_prompt_tokens].
        output_token_ids: tokens generated so far, kept here only while the request has no slot
            (with one, the slot table's row is the truth).
        order: place in the order of arrival; the scheduler sets it when the request is added.
    """

    request_id: int
    prompt_token_ids: TokenIds
    sampling: SamplingParams
    arrival_time: float
    """Seconds on the system-wide monotonic clock."""
    state: RequestState = RequestState.WAITING
    slot: int = -1
    output_token_ids: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))
    order: int = -1
    finish_reason: FinishReason | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def max_total_tokens(self) -> int:
        """Tokens it can reach: prompt plus `max_tokens`."""
        return len(self.prompt_token_ids) + self.sampling.max_tokens
