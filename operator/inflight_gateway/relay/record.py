"""The report on one generation request, collected while it is served."""

from __future__ import annotations

import re
import time
import uuid

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.relay.answer import Answer, Usage
from inflight_gateway.relay.client import Request
from inflight_gateway.relay.heads import find
from inflight_gateway.request import headers as names
from inflight_gateway.types import Finished

_REQUEST_ID = names.REQUEST_ID.encode()

_TAIL_BYTES = 2048
_COUNT = re.compile(rb'"(prompt_tokens|cached_tokens|completion_tokens)":\s*(\d+)')
"""Within a JSON string the quotes would be escaped."""


def _usage_in(tail: bytes) -> Usage | None:
    """OpenAI's `usage` object. The last one: a stream may count in each chunk."""
    counts = {name.decode(): int(count) for name, count in _COUNT.findall(tail)}
    return Usage(**counts) if counts else None


class Record:
    """Attributes: request_id: the gateway's own, made here. status: 0: the client has none yet. stream: requested by
    the client. arrived_unix: seconds."""

    __slots__ = (
        "_arrived",
        "_continuations",
        "_endpoints",
        "_first_at",
        "_longest_gap",
        "_request",
        "_service",
        "_tail",
        "_written_at",
        "arrived_unix",
        "request_id",
        "status",
        "stream",
    )

    def __init__(self, request: Request) -> None:
        # Not the client's X-Request-Id: requests of other clients may have the same.
        self.request_id = uuid.uuid4().hex
        self.status = 0
        self.stream = False
        self.arrived_unix = int(time.time())
        self._request = request
        self._service = ""
        self._endpoints: list[str] = []
        self._continuations = 0
        self._tail = b""
        self._first_at: float | None = None
        self._written_at = 0.0
        self._longest_gap = 0.0

    def attempt(self, service: str, endpoint: str, *, continued: bool) -> None:
        """An attempt got a response.

        Args:
            service, endpoint: empty: unknown.
            continued: tokens had been sent before.
        """
        self._service = service or self._service
        if endpoint:
            self._endpoints.append(endpoint)
        self._continuations += continued

    def wrote(self, now: float) -> None:
        """A part of the answer, to the client."""
        if self._first_at is None:
            self._first_at = now
        elif now - self._written_at > self._longest_gap:
            self._longest_gap = now - self._written_at
        self._written_at = now

    def plain(self, data: bytes) -> None:
        """A part of an answer without progress frames: its token counts, if it has any, are at its end."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def finished(self, answer: Answer, now: float, error: str) -> Finished:
        """Its service is empty if no response named one. Args: error: code of what ended the answer early."""
        namespace, _, name = self._service.partition("/")
        usage = answer.usage or _usage_in(self._tail) or Usage(completion_tokens=answer.num_tokens)
        arrived = self._request.arrived
        return Finished(
            request_id=self.request_id,
            service=ServiceKey(namespace, name),
            status=self.status,
            stream=self.stream,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_s=self._first_at - arrived if self.stream and self._first_at is not None else None,
            e2e_s=now - arrived,
            longest_gap_s=self._longest_gap if self.stream else 0.0,
            endpoints=tuple(self._endpoints),
            continuations=self._continuations,
            error=error,
            external_id=(find(self._request.headers, _REQUEST_ID) or b"").decode("latin-1"),
        )
