"""Conversion of a request's head and body to the input of the picker."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from inflight_gateway.request.body import NO_FIELDS, Body, from_header
from inflight_gateway.request.headers import ATTEMPT, AVOID, BODY, CHECK_KEY, OWN_REQUEST_ID, PROGRESS, REQUEST_ID
from inflight_gateway.request.prefix import BLOCK_TOKENS
from inflight_gateway.types import RequestView, ServiceClass, ServiceConfig

_MOST_ATTEMPTS = 99
"""Largest attempt number that is read: more than any service allows."""

_FIRST_OF_ALL, _LAST_OF_ALL = -100, 100
"""First and last priority that engines accept; they refuse requests with others. Retried requests wait with the first
one: a client may be in the middle of an answer."""


class Head:
    """A request's head as Envoy sends it: names in lower case; of a repeated name, the last value.

    Attributes:
        request_id: the relay's own id of the request; without a relay, a new id. external_id: X-Request-Id.
        body: fields of the body, from a relay, or empty for a request without a body; None: the body was not read yet,
            or the request was placed and needs its fields no more.
    """

    __slots__ = ("body", "external_id", "headers", "request_id")

    def __init__(self, pairs: Iterable[tuple[str, str]], *, end_of_stream: bool) -> None:
        headers = dict(pairs)
        fields = headers.pop(BODY, None)
        self.body = from_header(fields) if fields is not None else NO_FIELDS if end_of_stream else None
        self.headers: Mapping[str, str] = headers
        self.request_id = headers.get(OWN_REQUEST_ID) or uuid.uuid4().hex
        self.external_id = headers.get(REQUEST_ID, "")

    @property
    def host(self) -> str:
        return self.headers.get(":authority", "")

    @property
    def path(self) -> str:
        return self.headers.get(":path", "/")

    @property
    def relayed(self) -> bool:
        """True if a relay sent the request, and will report its end."""
        return ATTEMPT in self.headers

    @property
    def checks_key(self) -> bool:
        """True if only the API key is to be checked."""
        return self.headers.get(CHECK_KEY) == "1"

    @property
    def progress(self) -> bool:
        """True if the relay asks for progress frames: the engine then sends the head of its response at once."""
        return self.headers.get(PROGRESS) == "1"

    @property
    def body_bytes(self) -> int:
        """Length of the body in bytes; 0: unknown, or no body."""
        return _number(self.headers.get("content-length", ""))

    @property
    def attempt(self) -> int:
        return min(_number(self.headers.get(ATTEMPT, "")) or 1, _MOST_ATTEMPTS)

    @property
    def avoid(self) -> frozenset[str]:
        return addresses(self.headers.get(AVOID, ""))


def _number(text: str) -> int:
    """Returns the number in a text; 0 if it is no number of up to 64 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def addresses(text: str) -> frozenset[str]:
    """Returns the addresses in a list `IP:PORT,IP:PORT`."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def view(head: Head, body: Body, body_bytes: int, config: ServiceConfig, tenant: str, arrived: float) -> RequestView:
    """Returns all fields of the request but its prefix, which is long and needed only until the request starts.

    Args:
        arrived: time of Envoy's call, in seconds of the monotonic clock.
    """
    chosen = _service_class(body.service_class, config)
    again = head.attempt > 1
    priority = chosen.priority
    if body.priority is not None and _FIRST_OF_ALL <= body.priority <= _LAST_OF_ALL:
        priority = body.priority
    ttft_s = config.ttft_s if chosen.ttft_s is None else chosen.ttft_s
    return RequestView(
        request_id=head.request_id,
        service=config.key,
        arrived=arrived,
        path=head.path.partition("?")[0],
        prompt_tokens=body.prompt_tokens,
        max_tokens=body.max_tokens,
        choices=body.choices,
        service_class=chosen.name,
        priority=_FIRST_OF_ALL if again else priority,
        tenant=tenant,
        block_tokens=BLOCK_TOKENS,
        # Late requests wait for all others; the TTFT deadline does not apply to a continuation.
        deadline=float("inf") if again else arrived + ttft_s + config.ttft_per_token_s * body.prompt_tokens,
        body_bytes=body_bytes,
        attempt=head.attempt,
        avoid=head.avoid,
        external_id=head.external_id,
    )


def _service_class(name: str | None, config: ServiceConfig) -> ServiceClass:
    """Returns the request's class. The engine rejects an unknown class; until then it counts as the first."""
    first = config.classes[0] if config.classes else ServiceClass("default")
    return next((one for one in config.classes if one.name == name), first)
