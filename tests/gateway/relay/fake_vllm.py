"""A stand-in for vLLM's servers: its events have the fields of recorded ones of vLLM 0.32 (`vllm_0_32.json`).

Its tokens follow from all tokens before them, prompt included, as greedy ones do: a continuation from other ids gives
another answer. A token that is a multiple of `HALF` is the first half of a character, whose text comes with the next
token. Where a prompt ends with one, the next text repeats that of the whole prompt, as vLLM's does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.gateway.relay.fake_engine import Do, FakeEngine, Seen

CREATED = 1_795_000_000
CONTEXT = 43
HALF = 5
STOP = 2

CORE_DIED = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", '
    b'"type": "InternalServerError", "param": null, "code": 500}}\n\ndata: [DONE]\n\n'
)


@dataclass(frozen=True)
class Does(Do):
    """Script of one attempt. Attributes: merged: tokens of each event. old: it knows no `return_token_ids`. kept_alive:
    it begins with a comment, as with the plugin. reasoning: a parser takes the first two tokens out of the text."""

    merged: int = 1
    old: bool = False
    kept_alive: bool = False
    reasoning: bool = False


def prompt_ids(asked: dict) -> list[int]:
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return prompt
    text = json.dumps(asked.get("messages", prompt))
    return [301 + sum(text.encode()) % 97, 301 + len(text), 7]


def next_id(ids: list[int], ignore_eos: bool = True) -> int:
    drawn = 300 + (sum(ids) * 31 + len(ids) * 7) % 700
    return STOP if not ignore_eos and drawn % 23 == 0 else drawn


def text_of(ids: list[int]) -> str:
    """The text of tokens; that of an unfinished character at the end is U+FFFD."""
    text, halves = "", 0
    for one in ids:
        if one % HALF == 0:
            halves += 1
        else:
            text += "é" * halves + f" {one}"
            halves = 0
    return text + "\ufffd" * bool(halves)


def events(asked: dict, path: str, request_id: str, created: int, do: Does) -> list[bytes]:
    """The events of a stream."""
    chat = path == "/v1/chat/completions"
    prompt = prompt_ids(asked)
    most = asked.get("max_completion_tokens") or asked.get("max_tokens") or (CONTEXT - len(prompt) if chat else 16)
    options = asked.get("stream_options") or {}
    shows = bool(asked.get("return_token_ids")) and not do.old
    base = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": created,
        "model": asked.get("model", "m"),
    }

    def event(choices: list, **more) -> bytes:
        return b"data: " + json.dumps({**base, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"

    out = []
    if chat:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        out.append(event([role], prompt_token_ids=prompt if shows else None, prompt_text=None))
    ids, told, pending, fresh, reason = list(prompt), "", "", [], None
    unclean = prompt[-1] % HALF == 0
    while reason is None:
        ids.append(next_id(ids, bool(asked.get("ignore_eos"))))
        fresh.append(ids[-1])
        made = ids[len(prompt) :]
        reason = "stop" if ids[-1] == STOP else "length" if len(made) >= most else None
        if ids[-1] != STOP:
            whole = text_of(ids if unclean else made)
            if not whole.endswith("\ufffd"):
                pending, told = pending + whole[len(told) :], whole
        if len(fresh) < do.merged and reason is None:
            continue
        if chat:
            name = "reasoning" if do.reasoning and len(made) <= 2 else "content"
            choice = {"index": 0, "delta": {name: pending}, "logprobs": None, "finish_reason": reason}
            choice |= {} if reason is None else {"stop_reason": None}
        else:
            choice = {"index": 0, "text": pending, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            choice["prompt_token_ids"] = prompt if shows and len(made) == len(fresh) else None
        out.append(event([{**choice, "token_ids": fresh if shows else None}]))
        pending, fresh = "", []
    if options.get("include_usage"):
        total = len(ids)
        usage = {"prompt_tokens": len(prompt), "total_tokens": total, "completion_tokens": total - len(prompt)}
        out.append(event([], usage=usage, system_fingerprint="vllm-0.32.0-e2f126fa"))
    out.append(b"data: [DONE]\n\n")
    return out


class FakeVllm(FakeEngine):
    """vLLM servers with one script."""

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        if seen.target == "/tokenize":
            self.turn -= 1  # not an attempt of its own
            return await self._plain(json.dumps({"count": 0, "max_model_len": CONTEXT, "tokens": []}).encode(), writer)
        if seen.target == "/detokenize":
            self.turn -= 1
            ids = seen.json["tokens"]
            return await self._plain(json.dumps({"prompt": text_of(ids)}).encode(), writer)
        if do.status or do.no_head or do.frames is not None or not seen.json.get("stream"):
            if not do.status and not do.no_head and do.cut is None and do.frames is None:
                do = Do(status=200, body=b'{"whole":1}', pause_s=do.pause_s)
            return await super()._answer(do, seen, number, reader, writer)
        assert isinstance(do, Does) or type(do) is Do
        does = do if isinstance(do, Does) else Does(**{name: getattr(do, name) for name in Do.__dataclass_fields__})
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        sent = events(seen.json, seen.target, seen.headers["x-request-id"], CREATED + number, does)
        if does.kept_alive:
            sent.insert(0, b": keep-alive\n\n")
        return await self._write(b"".join(sent), does, seen, reader, writer)

    async def _plain(self, body: bytes, writer) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        return True
