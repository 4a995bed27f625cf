"""Messages about limits between gateways of one installation: JSON, signed with the gateway key."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from inflight_gateway.tenants.accounts import Admission, Settlement, TenantKey
from inflight_gateway.tenants.limits import Verdict

PATH = "/v1/limits/take"

MAX_AGE_S = 30.0
"""Largest age of an accepted message: a replayed one would charge a tenant again. Nodes' clocks differ by less."""

MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class InFlight:
    """Requests of a tenant in flight at the sender: the total, not the change."""

    key: TenantKey
    count: int


@dataclass(frozen=True, slots=True)
class Alone:
    """Admissions of the sender while the receiver did not respond."""

    key: TenantKey
    requests: int
    tokens: int


class Batch(msgspec.Struct, frozen=True):
    """The content of a call. Attributes: gateway: name of the sender's pod."""

    gateway: str
    admissions: tuple[Admission, ...] = msgspec.field(default=(), name="takes")
    settlements: tuple[Settlement, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    alone: tuple[Alone, ...] = ()


_batches = msgspec.json.Decoder(Batch)
_verdicts = msgspec.json.Decoder(tuple[Verdict, ...])


def encoded(value: Batch | tuple[Verdict, ...]) -> bytes:
    """Returns a message or its answer as JSON."""
    return msgspec.json.encode(value)


def batch(content: bytes) -> Batch:
    """Reads a message.

    Raises:
        ValueError: the message is invalid.
    """
    return _batches.decode(content)


def verdicts(content: bytes) -> tuple[Verdict, ...]:
    """Reads the answer to a message.

    Raises:
        ValueError: the answer is invalid.
    """
    return _verdicts.decode(content)


def to_sign(content: bytes) -> bytes:
    """Returns the message to sign for a call with this content."""
    return f"POST {PATH}\n".encode() + content
