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
"""The fields of token counts. Within a JSON string their quotes would be escaped."""


def _usage_in(tail: bytes) -> Usage | None:
    """Returns the last `usage` object of OpenAI's format: a stream may have one in each chunk."""
    counts = {name.decode(): int(count) for name, count in _COUNT.findall(tail)}
    return Usage(**counts) if counts else None


class Record:
    """The report under way. Attributes: request_id: the gateway's own, made here. status: HTTP status that the client
    got; 0: none yet. stream: the client asks for a stream. arrived_unix: Unix time of arrival, in seconds."""

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
        """Adds an attempt that got a response.

        Args:
            service, endpoint: where the response came from; empty: unknown.
            continued: tokens had been sent to the client before.
        """
        self._service = service or self._service
        if endpoint:
            self._endpoints.append(endpoint)
        self._continuations += continued

    def wrote(self, now: float) -> None:
        """Notes the time of a write to the client."""
        if self._first_at is None:
            self._first_at = now
        elif now - self._written_at > self._longest_gap:
            self._longest_gap = now - self._written_at
        self._written_at = now

    def plain(self, data: bytes) -> None:
        """Keeps the end of an answer without progress frames: it has the token counts, if there are any."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def finished(self, answer: Answer, now: float, error: str) -> Finished:
        """Returns the report; its service is empty if no response named one. Args: error: code of the error that ended
        the answer early; empty: none."""
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
