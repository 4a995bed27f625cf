"""Log-probabilities in OpenAI's two shapes: of chat, and the older one of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inflight_engine.server.generation import ScoredToken

TokenBytes = Callable[[int], bytes]

LEAST_LOGPROB = -9999.0
"""OpenAI's value for a token that is very unlikely; JSON has no infinity."""


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def chat_logprobs(tokens: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`logprobs` of a chat choice."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        spelled = token_bytes(token_id)
        return {"token": _text(spelled), "logprob": finite(logprob), "bytes": list(spelled)}

    content = [
        {
            **entry(token.token_id, token.logprobs.logprob),
            "top_logprobs": [entry(*top) for top in _top(token)],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`logprobs` of a completion choice. The sampled token is among its `top_logprobs`, as OpenAI has it; of tokens
    spelled alike the likeliest stands."""
    texts, top_logprobs = [], []
    for token in tokens:
        text = _text(token_bytes(token.token_id))
        top: dict[str, float] = {}
        for token_id, logprob in _top(token):
            top.setdefault(_text(token_bytes(token_id)), finite(logprob))
        top.setdefault(text, finite(token.logprobs.logprob))
        texts.append(text)
        top_logprobs.append(top)
    return {
        "tokens": texts,
        "token_logprobs": [finite(token.logprobs.logprob) for token in tokens],
        "top_logprobs": top_logprobs,
        "text_offset": [token.offset for token in tokens],
    }


def _top(token: ScoredToken) -> zip[tuple[int, float]]:
    return zip(token.logprobs.top_token_ids, token.logprobs.top_logprobs, strict=True)


def _text(spelled: bytes) -> str:
    r"""As OpenAI writes it: bytes that are only part of a character as `\xf0\x9f`."""
    return spelled.decode(errors="backslashreplace")
