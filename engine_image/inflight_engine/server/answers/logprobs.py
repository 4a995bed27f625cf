"""Log-probabilities in OpenAI's two formats, of chat and of completions, and those of prompts also in vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inflight_engine.server.requests.choice_text import ScoredToken
from inflight_engine.server.requests.prompt_scores import PromptScores

TokenBytes = Callable[[int], bytes]

LEAST_LOGPROB = -9999.0
"""OpenAI's value for a token that is very unlikely; JSON has no infinity."""


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def chat_logprobs(tokens: Sequence[ScoredToken], token_bytes: TokenBytes, *, named: bool = False) -> dict[str, Any]:
    """`logprobs` of a chat choice.

    Args:
        named: the request names the tokens of `top_logprobs`; the sampled one comes first among them, as in vLLM.
    """

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        spelled = token_bytes(token_id)
        return {"token": _text(spelled), "logprob": finite(logprob), "bytes": list(spelled)}

    content = [
        {
            **entry(token.token_id, token.logprobs.logprob),
            "top_logprobs": [entry(*top) for top in (_with_own(token) if named else _top(token))],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`logprobs` of a completion choice. The token itself is among its `top_logprobs`, as OpenAI has it; of tokens
    spelled alike the likeliest stands."""
    texts, top_logprobs = [], []
    for token in tokens:
        text = _text(token_bytes(token.token_id))
        texts.append(text)
        top_logprobs.append(_by_text(_top(token), text, token.logprobs.logprob, token_bytes))
    return {
        "tokens": texts,
        "token_logprobs": [finite(token.logprobs.logprob) for token in tokens],
        "top_logprobs": top_logprobs,
        "text_offset": [token.offset for token in tokens],
    }


def with_prompt(
    answer: dict[str, Any], scores: PromptScores, text: str, num_top: int, token_bytes: TokenBytes
) -> dict[str, Any]:
    """`logprobs` of a completion choice that begins with its prompt.

    Args:
        answer: those of its first tokens.
        text: the prompt's.
        num_top: how many of the likeliest tokens to show.
    """
    spelled = [token_bytes(token_id) for token_id in scores.token_ids]
    texts = [_text(each) for each in spelled]
    logprobs: list[float | None] = [None]
    top_logprobs: list[dict[str, float] | None] = [None]
    for token, own_text in zip(scores.after_first(num_top), texts[1:], strict=True):
        logprobs.append(finite(token.logprob))
        top_logprobs.append(_by_text(token.top, own_text, token.logprob, token_bytes))
    return {
        "tokens": texts + answer["tokens"],
        "token_logprobs": logprobs + answer["token_logprobs"],
        "top_logprobs": top_logprobs + answer["top_logprobs"],
        "text_offset": _offsets(spelled, len(text)) + answer["text_offset"],
    }


def prompt_logprobs(scores: PromptScores, num_top: int, token_bytes: TokenBytes) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: of each token of the prompt its own log-probability and then those of the likeliest;
    null for the first."""

    def entry(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": _text(token_bytes(token_id))}

    shown: list[dict[str, Any] | None] = [None]
    for token in scores.after_first(num_top):
        entries = {str(token.token_id): entry(token.token_id, token.logprob, token.rank)}
        for rank, (token_id, logprob) in enumerate(token.top, 1):
            entries.setdefault(str(token_id), entry(token_id, logprob, rank))
        shown.append(entries)
    return shown


def _by_text(
    top: Iterable[tuple[int, float]], own_text: str, own_logprob: float, token_bytes: TokenBytes
) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token_id, logprob in top:
        by_text.setdefault(_text(token_bytes(token_id)), finite(logprob))
    by_text.setdefault(own_text, finite(own_logprob))
    return by_text


def _offsets(spelled: Sequence[bytes], length: int) -> list[int]:
    """Characters of a prompt's text before each of its tokens; of tokens that are parts of a character, before that.

    Args:
        length: of the text. What the tokens spell beyond it, a bos or a space that the tokenizer puts in front, is not
            in the text.
    """
    counts, count = [], 0
    for token in spelled:
        counts.append(count - (_is_continuation(token[0]) if token else 0))
        count += sum(not _is_continuation(byte) for byte in token)
    return [min(max(each - (count - length), 0), length) for each in counts]


def _is_continuation(byte: int) -> bool:
    """The byte continues a character in UTF-8."""
    return byte & 0xC0 == 0x80


def _top(token: ScoredToken) -> zip[tuple[int, float]]:
    return zip(token.logprobs.top_token_ids, token.logprobs.top_logprobs, strict=True)


def _with_own(token: ScoredToken) -> list[tuple[int, float]]:
    own = token.token_id, token.logprobs.logprob
    return [own, *(each for each in _top(token) if each[0] != token.token_id)]


def _text(spelled: bytes) -> str:
    r"""Text of a token, with OpenAI's escapes for bytes that are only part of a character, as in `\xf0\x9f`."""
    return spelled.decode(errors="backslashreplace")
