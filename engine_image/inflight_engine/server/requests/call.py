"""An HTTP request for generation, with a generation for each choice."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_contract.errors import ApiError
from inflight_engine.request import FinishReason
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.inbox import Inbox


@dataclass(frozen=True, slots=True)
class Call:
    """Attributes:
    choices: ordered by index; of several prompts those of the first come first.
    inbox: receives their updates.
    num_prompt_tokens: of all prompts, each counted once regardless of `n`.
    num_samples: `n`, choices of each prompt.
    streaming: the response is a stream.
    relayed: its progress is written for a relay.
    blocks: names of the first prompt's blocks for the relay (`kv_events.names`); empty: it gets none.
    cached_before: tokens that the engine which computed the prompt had in its prefix cache; None: this one does.
    """

    choices: list[Generation]
    inbox: Inbox
    num_prompt_tokens: int
    num_samples: int
    streaming: bool
    relayed: bool = False
    blocks: bytes = b""
    cached_before: int | None = None

    @property
    def done(self) -> bool:
        return all(generation.done for generation in self.choices)

    @property
    def error(self) -> ApiError | None:
        """The error of the response: that of the first failed choice."""
        return next((generation.error for generation in self.choices if generation.error is not None), None)

    @property
    def abandoned(self) -> bool:
        """The client no longer waits for it."""
        return any(generation.finish_reason is FinishReason.ABORT for generation in self.choices)

    @property
    def service_class(self) -> str:
        """Name of its service class."""
        return self.choices[0].request.scheduling.service_class

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens that the engine had in its prefix cache at the start of their prefill."""
        if self.cached_before is not None:
            return min(self.cached_before, self.num_prompt_tokens)
        return sum(generation.cached_tokens for generation in self.choices[:: self.num_samples])

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens, including stop tokens."""
        return sum(len(generation.token_ids) for generation in self.choices)

    @property
    def num_reasoning_tokens(self) -> int:
        """Sampled tokens that are reasoning; walks over them."""
        return sum(generation.num_reasoning_tokens for generation in self.choices)
