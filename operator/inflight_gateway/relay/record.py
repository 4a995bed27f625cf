"""The report on one generation request, collected while it is served."""

from __future__ import annotations

import time
import uuid

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.relay.answers.answer import Answer, Usage
from inflight_gateway.relay.engine_head import external_id
from inflight_gateway.relay.http.client import Request
from inflight_gateway.types import Finished, ServiceConfig

_NO_SERVICE = ServiceKey("", "")

_PATH_BYTES = 256
"""Most bytes of a path in a report: a client chooses it, and reports may wait for a picker."""


class Record:
    """The report under way.

    Attributes:
        request_id: the gateway's own, made here. external_id: X-Request-Id.
        service: empty until a body named it. tenant, key_id: whom the API key belongs to, and the id of the key.
        status: HTTP status that the client got; 0: none yet.
        stream: the client asks for a stream.
        arrived_unix: Unix time of arrival, in seconds.
    """

    __slots__ = (
        "_continuations",
        "_endpoints",
        "_first_at",
        "_longest_gap",
        "_request",
        "_written_at",
        "arrived_unix",
        "external_id",
        "key_id",
        "path",
        "request_id",
        "service",
        "status",
        "stream",
        "tenant",
    )

    def __init__(self, request: Request) -> None:
        # Not the client's X-Request-Id: requests of other clients may have the same.
        self.request_id = uuid.uuid4().hex
        self.external_id = external_id(request)
        self.path = request.path.decode("latin-1")
        self.service = _NO_SERVICE
        self.tenant = self.key_id = ""
        self.status = 0
        self.stream = False
        self.arrived_unix = int(time.time())
        self._request = request
        self._endpoints: list[str] = []
        self._continuations = 0
        self._first_at: float | None = None
        self._written_at = 0.0
        self._longest_gap = 0.0

    def attempt(self, endpoint: str, *, continued: bool) -> None:
        """Adds an attempt that an engine answers. Args: continued: tokens had been sent to the client before."""
        self._endpoints.append(endpoint)
        self._continuations += continued

    def wrote(self, now: float) -> None:
        """Notes the time of a write to the client."""
        if self._first_at is None:
            self._first_at = now
        elif now - self._written_at > self._longest_gap:
            self._longest_gap = now - self._written_at
        self._written_at = now

    def finished(self, answer: Answer, plain: Usage | None, now: float, error: str) -> Finished:
        """Returns the report.

        Args:
            plain: counts of an answer without progress frames.
            error: code of the error that ended the answer early; empty: none.
        """
        usage = answer.usage or plain or Usage(completion_tokens=answer.num_tokens)
        arrived = self._request.arrived
        return Finished(
            request_id=self.request_id,
            service=self.service,
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
            external_id=self.external_id,
            tenant=self.tenant,
            key_id=self.key_id,
            path=self.path,
        )


def short_report(request: Request, config: ServiceConfig | None, status: int, now: float, error: str = "") -> Finished:
    """Returns the report of a request that no engine generated for. Args: config: None: it named no service."""
    return Finished(
        request_id=uuid.uuid4().hex,
        service=_NO_SERVICE if config is None else config.key,
        status=status,
        stream=False,
        e2e_s=now - request.arrived,
        error=error,
        external_id=external_id(request),
        path=request.path[:_PATH_BYTES].decode("latin-1"),
    )
