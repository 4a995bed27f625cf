"""The states of all requests of a fleet simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from inflight_engine.request import TokenIds
from inflight_simulator.arrivals import OUTPUT_TOKEN
from inflight_simulator.fleet.requests import Requests


@dataclass(slots=True)
class RequestStates:
    """State of each request; lists are by request id.

    Attributes:
        first_s, end_s: times of the first and last token; NaN until then.
        pod: number of the pod that it was sent to; -1 until then.
        sent_s: time at which it was sent: its arrival, unless the gateway held it.
        ended: requests that ended since the list was last cleared, refused ones included; kept for the gateway.
        refused: code of the gateway's refusal, by request.
        begun: requests whose first token came from the prefill set since the list was last cleared.
        reads: seconds that each hand-over waited for keys and values. gaps: and between the tokens before and after.
    """

    requests: Requests
    first_s: list[float] = field(init=False)
    end_s: list[float] = field(init=False)
    pod: list[int] = field(init=False)
    prompt_tokens: list[int] = field(init=False)
    output_tokens: list[int] = field(init=False)
    arrival_s: list[float] = field(init=False)
    sent_s: list[float] = field(init=False)
    ended: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    prompt: TokenIds = field(init=False)
    """Prompt of all requests, if their contents are never read."""

    def __post_init__(self) -> None:
        count = len(self.requests)
        self.first_s, self.end_s, self.pod = [math.nan] * count, [math.nan] * count, [-1] * count
        self.prompt_tokens = self.requests.prompt_tokens.tolist()
        self.output_tokens = self.requests.output_tokens.tolist()
        self.arrival_s = self.requests.arrival_s.tolist()
        self.sent_s = list(self.arrival_s)
        self.prompt = np.zeros(max(self.prompt_tokens, default=1), np.int32)

    def tenant(self, request_id: int) -> str:
        """Returns the tenant of a request; empty where requests have none."""
        return self.requests.tenants[request_id] if self.requests.tenants else ""

    def prompt_token_ids(self, request_id: int) -> TokenIds:
        """int32 [prompt_tokens]: equal where two prompts share a prefix."""
        tokens = self.prompt_tokens[request_id]
        if not self.requests.hash_ids:
            return self.prompt[:tokens]
        hash_ids = np.array(self.requests.hash_ids[request_id], np.int32)
        if not len(hash_ids):
            return np.full(tokens, OUTPUT_TOKEN - 1 - request_id, np.int32)
        return np.repeat(hash_ids, self.requests.hash_tokens)[:tokens]
