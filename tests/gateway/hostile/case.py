"""A hostile request: the bytes on a connection, and the permitted answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

CHAT = "/v1/chat/completions"
PATHS = (
    CHAT,
    "/v1/completions",
    "/v1/generate",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/score",
    "/rerank",
)

FORGED = "forged"
"""Mark in the value of each header that no engine may see."""

OPEN, KEYED, ASLEEP, TWICE = "open.default", "keyed.default", "asleep.default", "twice"
"""Hosts: of services without API keys, with them and without an engine, and a name that two namespaces have."""

RIGHT_KEY = "ifk_right"

Header = tuple[str, str]


class Leave(Enum):
    """The way in which the client ends the connection. The values are for people."""

    ANSWERED = "when all answers are there"
    END = "end of file after the request, then as ANSWERED"
    RESET = "reset after the request"
    FIRST_BYTE = "reset at the first byte of the answer"


@dataclass(frozen=True, slots=True)
class Case:
    """A case.

    Attributes:
        pieces: bytes to write, and seconds to wait between them.
        answers: responses that are waited for.
        statuses: that each of them may have; empty: all below 500.
        patience_s: how long an answer is waited for.
        certain: an answer must come.
        head: of a HEAD request, whose answer has no body.
        http2: answers are HTTP/2 frames.
        good: a request without fault, which must be answered with 200.
    """

    kind: str
    pieces: tuple[bytes | float, ...]
    leave: Leave = Leave.ANSWERED
    answers: int = 1
    statuses: frozenset[int] = frozenset()
    patience_s: float = 15.0
    certain: bool = True
    head: bool = False
    http2: bool = False
    good: bool = False

    def allows(self, status: int) -> bool:
        return status in self.statuses if self.statuses else status < 500


@dataclass(slots=True)
class Outcome:
    """Answers to a case. Attributes: answers: status and body of each response that came whole."""

    answers: list[tuple[int, bytes]] = field(default_factory=list)


def chat_body(**more: Any) -> bytes:
    return json.dumps(chat_fields(**more)).encode()


def chat_fields(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **more}


def fields_of(target: str) -> dict[str, Any]:
    """Returns the fields of a request without fault."""
    more: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "hello", "max_tokens": 4},
        "/v1/generate": {"prompt": "hello", "max_tokens": 4},
        "/v1/responses": {"input": "hello", "max_output_tokens": 16},
        "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
        "/v1/embeddings": {"input": ["hello", "you"]},
        "/v1/score": {"text_1": "hello", "text_2": ["you", "they"]},
        "/rerank": {"query": "hello", "documents": ["you", "they"]},
    }
    named = {} if target == "/v1/generate" else {"model": "m"}
    return {**named, **more[target]} if target in more else chat_fields()


def head(method: str, target: str, headers: Iterable[Header], version: str = "HTTP/1.1") -> bytes:
    lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(
    body: bytes,
    *headers: Header,
    target: str = CHAT,
    host: str = OPEN,
    content_type: str = "application/json",
    length: int | None = None,
) -> bytes:
    """Builds a request. Args: length: as the header says it; None: the body's."""
    given = [
        ("Host", host),
        ("Content-Type", content_type),
        *headers,
        ("Content-Length", str(len(body) if length is None else length)),
    ]
    return head("POST", target, given) + body
