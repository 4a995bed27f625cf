"""Streams of vLLM as progress frames, and their continuation at another engine.

With `return_token_ids`, vLLM (0.10.2 and later) sends the ids of the prompt and of each token. `/v1/completions` takes
ids as a prompt, so another engine continues after the tokens so far, and its chunks get the form of the first ones. The
prompt was rendered by then: fields that only shape it have no more effect. vLLM's chunks are compact JSON, one event
each, and quotes in text are escaped, so that regular expressions read them at a fraction of the cost of a decoder.

Source: `vllm/entrypoints/openai/{chat_completion,completion}/` of vLLM 0.32.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from inflight_gateway.relay.answers.answer import Answer, Usage
from inflight_gateway.relay.answers.frames import DONE, Frame, FrameParser
from inflight_gateway.relay.answers.vllm_blocks import note

CHAT, TEXT = b"/v1/chat/completions", b"/v1/completions"

_COPIED: Final = frozenset(
    "model temperature top_p top_k min_p user priority cache_salt ignore_eos stop_token_ids logit_bias"
    " allowed_token_ids skip_special_tokens spaces_between_special_tokens session_id class".split()
)
"""Fields with the same meaning after some tokens."""

_COUNTED: Final = frozenset("stream stream_options n max_tokens max_completion_tokens min_tokens seed".split())
"""Fields that a continuation has with other values."""

_RENDERED: Final = {
    CHAT: frozenset(
        "messages add_generation_prompt continue_final_message add_special_tokens chat_template chat_template_kwargs"
        " documents reasoning_effort".split()
    ),
    TEXT: frozenset(("prompt", "add_special_tokens")),
}
"""Fields that only the prompt depends on."""

_NEUTRAL: Final = {
    "frequency_penalty": (b"0", b"0.0"),
    "presence_penalty": (b"0", b"0.0"),
    "repetition_penalty": (b"1", b"1.0"),
    "stop": (b"[]",),
    "tools": (b"[]",),
    "tool_choice": (b'"none"',),
    "logprobs": (b"false",),
    "top_logprobs": (b"0",),
    "echo": (b"false",),
    "return_token_ids": (b"false",),
}
"""Values, beside null, with which fields that are in no other list change nothing."""

_USUAL = re.compile(
    rb'(data: \{[^\[\\]*"choices":\[\{"index":0,(?:"delta":\{"content":|"text":)"(?:[^"\\]|\\.)++"\}?,"logprobs":null,'
    rb'"finish_reason":null,(?:"stop_reason":null,"prompt_token_ids":null,)?"token_ids":)\[([\d,]++)\](\}\]\}\n\n)'
)
"""An event with text and tokens, but none of the first and the last ones."""

_IDS = re.compile(rb'"token_ids":\[([\d,]*)\]')
_PROMPT_IDS = re.compile(rb'"prompt_token_ids":\[([\d,]+)\]')
_FINISH = re.compile(rb'"finish_reason":"(\w+)"')
_CONTENT = re.compile(rb'"(?:content|text)":"(?!")')
_PARSED = re.compile(rb'"(?:reasoning|reasoning_content|tool_calls)":(?!null|""|\[\])')
"""A part of the answer that a parser of the engine took out of the text. `/v1/completions` has no parsers."""
_CHAT_TEXT = b'"content":"'
"""In each event of a chat with tokens, unless a parser keeps their text: reasoning may begin with them."""
_NO_CHOICES = b'"choices":[]'
_ERROR = re.compile(rb'data: \{"error":.*"code":\s*(\d{3})\b', re.DOTALL)

_ABORTED = b'data: {"error":{"message":"the engine aborted the request","type":"InternalServerError","code":503}}\n\n'

_SEEDS = 2**63

_TEXT_MAX_TOKENS = 16
"""Tokens of an answer of `/v1/completions` whose request has no number or null, unlike that of a chat."""

_TAIL = 16
"""Tokens at the end of an answer whose text says whether it ends within a character."""

_UNFINISHED = "\ufffd"
"""End of the text of tokens that end within a character, of up to four bytes and so up to four tokens."""


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None
    stop_reason: msgspec.Raw = msgspec.Raw(b"null")


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


class _Head(msgspec.Struct):
    """Fields that all chunks of an answer have alike."""

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Usage(msgspec.Struct):
    usage: _Counts


class _Text(msgspec.Struct):
    prompt: str


class _Context(msgspec.Struct):
    max_model_len: int


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    type: str = "text"


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_messages = msgspec.json.Decoder(list[_Message])
_chunk = msgspec.json.Decoder(_Chunk)
_head = msgspec.json.Decoder(_Head)
_usage = msgspec.json.Decoder(_Usage)


def stream_of(body: bytes, path: bytes) -> VllmStream | None:
    """Returns the stream that a request asks for; None: after its first token, no other engine can continue it.

    Such requests have tools, a response format, log-probabilities, penalties, stop strings, images or a field that is
    not known here. Args: body: a JSON object with one prompt and one choice, whose client asks for a stream.
    """
    if path not in _RENDERED:
        return None
    fields = _object.decode(body)
    known = _COPIED | _COUNTED | _RENDERED[path]
    if any(name not in known and not _is_neutral(name, raw) for name, raw in fields.items()) or (
        b'"continuous_usage_stats"' in bytes(fields.get("stream_options", b""))
    ):
        return None
    try:
        if path == CHAT:
            _messages.decode(fields.get("messages", b"[]"))
        return VllmStream(fields, path)
    except ValueError:  # parts that are no text, or fields that the engine refuses
        return None


def _is_neutral(name: str, raw: msgspec.Raw) -> bool:
    return bytes(raw) in (b"null", *_NEUTRAL.get(name, ()))


class VllmStream:
    """A request for a stream that another vLLM can continue.

    Args:
        fields: of its body, as JSON. path: of its request.

    Attributes:
        body: of the first attempt: asks for token ids.
        block_size: tokens of a block of its engine, whose events tell of blocks; 0: there are no events.

    Raises:
        ValueError: a number is none.
    """

    def __init__(self, fields: dict[str, msgspec.Raw], path: bytes) -> None:
        self._path = path
        self._fields = {name: raw for name, raw in fields.items() if name in _COPIED}
        most, seed, least, whole = (
            msgspec.json.decode(fields.get(name, b"null"), type=int | None)
            for name in ("max_tokens", "seed", "min_tokens", "max_completion_tokens")
        )
        self._max_tokens = most if whole is None or path == TEXT else whole
        if most is None and path == TEXT:
            self._max_tokens = _TEXT_MAX_TOKENS
        self._seed, self._min_tokens = seed, least
        self._head = _Head()
        self._prompt_ids = b""
        self._salt = msgspec.json.decode(fields.get("cache_salt", b"null"), type=str | None) or ""
        self.block_size = 0
        self.body = msgspec.json.encode({**fields, "return_token_ids": True})

    @property
    def kept_bytes(self) -> int:
        """Bytes of the prompt's token ids, which are kept."""
        return len(self._prompt_ids)

    def reader(self, answer: Answer) -> VllmFrames:
        """Returns the parser of the frames of an attempt, which continues `answer` if it has tokens."""
        return VllmFrames(self, answer.num_tokens if answer.has_tokens else None)

    def continued(self, answer: Answer) -> bytes:
        """Returns the body of a request to `/v1/completions` that continues after the tokens of `answer`.

        Raises:
            ValueError: the ids of the prompt, or the length of the answer, are not known.
        """
        if not self._prompt_ids or self._max_tokens is None:
            raise ValueError("no ids of the prompt, or no length of the answer")
        count, most = answer.num_tokens, self._max_tokens
        changed: dict[str, object] = {
            "prompt": msgspec.Raw(b"[%b]" % b",".join(filter(None, (self._prompt_ids, answer.token_ids)))),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": max(1, most - count),
        }
        if self._seed is not None:
            # Another one: with the same, the random numbers of the first tokens would come again.
            changed["seed"] = (self._seed + count) % _SEEDS
        if self._min_tokens:
            changed["min_tokens"] = max(0, self._min_tokens - count)
        return msgspec.json.encode({**self._fields, **changed})

    def tail(self, answer: Answer) -> bytes:
        """Returns the body of a request to `/detokenize` for the end of `answer`."""
        last = b",".join(answer.token_ids.rsplit(b",", _TAIL)[-_TAIL:])
        return self._of_model(tokens=msgspec.Raw(b"[%b]" % last))

    def context(self) -> bytes | None:
        """Returns the body of a request to `/tokenize`, whose answer has the length of the context, where the answer of
        a chat may have as many tokens as fit; None: their number is known."""
        return self._of_model(prompt="a") if self._max_tokens is None else None

    def take_context(self, answer: bytes) -> None:
        """Bounds the answer by the length of the context. Args: answer: of `/tokenize`.

        Raises:
            ValueError: it is none.
        """
        self._max_tokens = msgspec.json.decode(answer, type=_Context).max_model_len - self._num_prompt_tokens

    def _of_model(self, **fields: object) -> bytes:
        model = {"model": self._fields["model"]} if "model" in self._fields else {}
        return msgspec.json.encode({**model, **fields})

    @property
    def _num_prompt_tokens(self) -> int:
        return self._prompt_ids.count(b",") + 1

    def counts(self, answer: Answer) -> Frame:
        """Returns the frame with the token counts of a whole answer whose engine ended before it sent its own."""
        return self._counted(_Counts(self._num_prompt_tokens, answer.num_tokens))

    def read(self, event: bytes, before: int | None) -> Frame:
        """Returns the frame of an event.

        Args:
            event: data of it, with the empty line.
            before: tokens of the answer that the attempt continues; None: it is the first with a token.

        Raises:
            ValueError: it is no event of vLLM.
        """
        usual = _USUAL.fullmatch(event) if before is None else None
        if usual is not None:
            return Frame((b"t 0 " + usual[2],), b"%bnull%b" % (usual[1], usual[3]))
        error = _ERROR.match(event)
        if error is not None:
            status = int(error[1])
            return Frame((b"e %d %b" % (status, b"retry" if status >= 500 else b"final"),), event)
        if _NO_CHOICES in event:
            counts = _usage.decode(event.removeprefix(b"data: ")).usage
            if before is None:
                return Frame((_note(counts),), event)
            return self._counted(_Counts(counts.prompt_tokens - before, counts.completion_tokens + before))
        finish = _FINISH.search(event)
        if finish is not None and finish[1] == b"abort":
            return Frame((b"e 503 retry",), _ABORTED)
        ids = _IDS.search(event)
        notes = [b"t 0 " + ids[1]] if ids is not None and ids[1] else []
        withheld = self._path == CHAT and before is None and notes and _CHAT_TEXT not in event
        if withheld or _PARSED.search(event) is not None or (not notes and _CONTENT.search(event) is not None):
            notes.append(b"x ")
        if finish is not None:
            notes.append(b"f 0 " + finish[1])
        if before is not None:
            return Frame(tuple(notes), self._translated(event))
        prompt = _PROMPT_IDS.search(event)
        if prompt is not None:
            self._prompt_ids = prompt[1]
            if self.block_size and (named := note(prompt[1], self.block_size, self._salt)):
                notes.insert(0, named)
            self._head = _head.decode(event.removeprefix(b"data: "))
            event = _PROMPT_IDS.sub(b'"prompt_token_ids":null', event)
        return Frame(tuple(notes), _IDS.sub(b'"token_ids":null', event))

    def _counted(self, counts: _Counts) -> Frame:
        prompt, completion = counts.prompt_tokens, counts.completion_tokens
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
        return Frame((_note(counts),), self._event([], usage=usage))

    def _translated(self, event: bytes) -> bytes:
        """Returns an event of `/v1/completions` in the form of the answer's first ones."""
        choices = _chunk.decode(event.removeprefix(b"data: ")).choices
        return self._event([self._choice(one) for one in choices])

    def _choice(self, one: _Choice) -> dict[str, object]:
        text: dict[str, object] = {"delta": {"content": one.text}} if self._path == CHAT else {"text": one.text}
        choice = {"index": 0, **text, "logprobs": None, "finish_reason": one.finish_reason}
        if self._path == TEXT:
            return {**choice, "stop_reason": one.stop_reason, "prompt_token_ids": None, "token_ids": None}
        ended = {} if one.finish_reason is None else {"stop_reason": one.stop_reason}
        return {**choice, **ended, "token_ids": None}

    def _event(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return (
            b"data: " + msgspec.json.encode({**msgspec.to_builtins(self._head), "choices": choices, **more}) + b"\n\n"
        )


def _note(counts: _Counts) -> bytes:
    details = counts.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    return b"u " + msgspec.json.encode(Usage(counts.prompt_tokens, cached, counts.completion_tokens))


def ends_within_character(answer: bytes) -> bool:
    """Returns whether tokens end within a character. vLLM repeats the text of the whole prompt where a prompt does.

    Args:
        answer: of `/detokenize`.

    Raises:
        ValueError: it is none.
    """
    return msgspec.json.decode(answer, type=_Text).prompt.endswith(_UNFINISHED)


class VllmFrames(FrameParser):
    """Parser of the frames of one attempt. Args: before: see `VllmStream.read`."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: VllmStream, before: int | None) -> None:
        super().__init__()
        self._stream = stream
        self._before = before

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes.

        Raises:
            ValueError: no more data may be fed.
        """
        frames = super().feed(data)
        return [
            self._stream.read(frame.data, self._before) if frame.data and frame.data != DONE else frame
            for frame in frames
        ]
