"""Messages between relays and pickers.

Each relay process has one stream to the picker of each gateway pod: to that of its own pod on a UNIX socket
(`Sockets.picker`), to the others by TCP, signed (`link.signed`). The picker that owns a service (`link.ownership`)
answers for it; all say which pods are ready (`Gateways`), and the picker of the relay's own pod what it knows (`Known`,
`Keys`). A frame is its length in 4 bytes, most significant first, and a msgpack list of messages: all that one side has
to say in one turn of its event loop. Pickers send an empty frame every `BEAT_S`.

When a service gets another owner, its relays say `Released` to the old one, and ask the new one again: `Running` for
attempts that engines answer, then `Ask` for those that wait, in their order.

A request has one id, made by the relay, for all its attempts. Each attempt is asked for, answered by `Held` and then
`Go` or `Refuse`, or by one of these alone, and ended by `Left`; `Ended` comes last. Messages on an attempt that is over
at the receiver are ignored, because both sides may have decided at the same time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.request.body import NO_FIELDS, Body
from inflight_gateway.types import Endpoint, Finished, GatewayPod, PromptBlocks, Refusal, ServiceConfig

MAX_FRAME_BYTES = 32 * 2**20
"""Most bytes of a frame; a longer one ends the stream. Senders split what may grow beyond it."""

ACKNOWLEDGED_S = 0.2
"""Seconds in which the picker answers an `Ask` by `Held`, `Go` or `Refuse`, or another one's: after this silence the
relay picks by itself, if no other picker can be asked."""

BEAT_S = 0.5
"""Seconds between two beats of a picker: empty frames, to all relays at the same time."""

SILENT_S = 1.5
"""Seconds without a beat after which a picker has hung, and relays ask the next owner."""

MAX_TURNS = 2
"""Pickers that may answer `Elsewhere` for an attempt; the next one answers for it whatever it knows."""

Headers: TypeAlias = tuple[tuple[str, str], ...]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the messages: an array that begins with the name of its type."""


class Ask(_Message, frozen=True):
    """A relay asks for an engine for an attempt.

    Attributes:
        id: of the request, the same for all its attempts.
        attempt: number of the attempt, from 1; only the first one is charged to its tenant.
        tenant, key_id: whom the API key belongs to, and the id of the key; empty at services without keys.
        path: without its query.
        body: what a pick depends on; prompt tokens include those of a continuation.
        body_bytes: memory that the relay keeps for the body.
        avoid: addresses of engines that failed this request.
        external_id: X-Request-Id.
        age_s: seconds since the request arrived at the relay.
        waited_s: seconds since the relay first asked for this attempt.
        without: gateway pods that this relay cannot reach: none of them is taken for the owner.
        turns: answers `Elsewhere` to this attempt so far.
        admitted: an earlier owner has admitted this attempt, and it waits: it is charged to its tenant's limits, and
            neither counted as an arrival nor refused by limits or bounds of the queue.
        handed_over: an engine that had the request gives the next one its keys and values.
    """

    id: str
    attempt: int
    service: ServiceKey
    tenant: str = ""
    key_id: str = ""
    path: str = ""
    body: Body = NO_FIELDS
    body_bytes: int = 0
    avoid: tuple[str, ...] = ()
    external_id: str = ""
    age_s: float = 0.0
    waited_s: float = 0.0
    without: tuple[str, ...] = ()
    turns: int = 0
    admitted: bool = False
    handed_over: bool = False


class Hello(_Message, frozen=True):
    """The first message of a relay. Attributes: relay: unique for each process, the same on all of its streams."""

    relay: str


class Running(_Message, frozen=True):
    """An engine answers an attempt that this picker was not asked for. Attributes: ask: without the hashes of its
    prompt. address: the engine. tokens: completion tokens so far, over all attempts."""

    ask: Ask
    address: str
    tokens: int = 0


class Released(_Message, frozen=True):
    """The relay's requests of a service have another owner from now on: this picker ends them, and no report
    follows."""

    service: ServiceKey


class Answering(_Message, frozen=True):
    """An engine has begun to answer an attempt: not the first one of its `Go`, or others were tried before, or the
    relay started the attempt alone, after its `Ask`. Also sent with the first token, where the engine tells the blocks
    of the prompt. Attributes: address: the engine. refused: those that were tried before and refused it."""

    id: str
    attempt: int
    address: str
    refused: tuple[str, ...] = ()
    blocks: PromptBlocks | None = None


class Progress(_Message, frozen=True):
    """Completion tokens of answers under way, by request: totals over all attempts, about once a second."""

    tokens: tuple[tuple[str, int], ...]


class Left(_Message, frozen=True):
    """An attempt is over, or no longer wanted; the request asks again or ends."""

    id: str
    attempt: int


class Ended(_Message, frozen=True):
    """A request has ended, also one that the relay refused and never asked for."""

    report: Finished


class Elsewhere(_Message, frozen=True):
    """This picker does not own the attempt's service. Attributes: pod: the gateway pod that does."""

    id: str
    attempt: int
    pod: str


class Held(_Message, frozen=True):
    """The attempt waits in the picker's queue."""

    id: str
    attempt: int


class Go(_Message, frozen=True):
    """The attempt goes to these engines, best first, until one accepts it.

    Attributes:
        first_token_within_s: seconds from the head of the answer in which the first token must come.
        headers: for the response: the tenant's limits.
        block_size: tokens of a block of the first engine, if its KV cache events name blocks as the relay does; 0: they
            do not, or there are none.
        prefill: the engine computes the prompt; after the first token, the relay asks for one that goes on.
    """

    id: str
    attempt: int
    endpoints: tuple[str, ...]
    first_token_within_s: float = 60.0
    headers: Headers = ()
    block_size: int = 0
    prefill: bool = False


class Refuse(_Message, frozen=True):
    """The picker refuses the attempt; fields as in `Refusal`."""

    id: str
    attempt: int
    status: int
    code: str
    message: str
    headers: Headers = ()

    @classmethod
    def of(cls, request_id: str, attempt: int, refusal: Refusal) -> Refuse:
        """Makes the message that refuses an attempt."""
        return cls(request_id, attempt, refusal.status, refusal.code, refusal.message, refusal.headers)


class Known(_Message, frozen=True):
    """Changes of the catalog since the last message, at first all of it; None or empty: removed.

    Attributes:
        outside: InferenceServices that are not behind the gateway, and whether they are so.
        models: services that claim each model. hosts: the rules of Hosts; None: unchanged.
        complete: the picker has sent all services that it knows.
    """

    services: tuple[tuple[ServiceKey, ServiceConfig | None], ...] = ()
    endpoints: tuple[tuple[ServiceKey, tuple[Endpoint, ...]], ...] = ()
    secrets: tuple[tuple[ObjectKey, dict[str, bytes] | None], ...] = ()
    outside: tuple[tuple[ServiceKey, bool], ...] = ()
    models: tuple[tuple[str, tuple[ServiceKey, ...]], ...] = ()
    hosts: Hosts | None = None
    complete: bool = False


class Keys(_Message, frozen=True):
    """The gateway keys that sign tenants for engines. None: keyed services cannot be served."""

    current: bytes | None
    previous: bytes | None = None

    @property
    def known(self) -> tuple[bytes, ...]:
        """The keys that there are, the current one first."""
        return tuple(key for key in (self.current, self.previous) if key is not None)


class Gateways(_Message, frozen=True):
    """The ready gateway pods, among which services are shared out. Attributes: own: name of the sender's pod, which may
    be missing in `pods`: it starts or drains. relays: relay processes of the sender's pod."""

    own: str
    pods: tuple[GatewayPod, ...]
    relays: int = 1


FromRelay: TypeAlias = Hello | Running | Released | Ask | Answering | Progress | Left | Ended
FromPicker: TypeAlias = Elsewhere | Held | Go | Refuse | Known | Keys | Gateways

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
from_relay = msgspec.msgpack.Decoder(list[FromRelay])
from_picker = msgspec.msgpack.Decoder(list[FromPicker])


def encode(messages: Sequence[FromRelay | FromPicker]) -> bytes:
    """Returns the content of the frame of these messages."""
    return _encoder.encode(messages)


def framed(content: bytes) -> bytes:
    """Returns the frame with this content."""
    return _LENGTH.pack(len(content)) + content


def frame(messages: Sequence[FromRelay | FromPicker]) -> bytes:
    """Returns the frame of these messages."""
    return framed(encode(messages))


class Frames:
    """The frames of an unsigned stream: makes them, and splits a stream into their contents."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def frame(self, messages: Sequence[FromRelay | FromPicker]) -> bytes:
        """Returns the frame of these messages."""
        return frame(messages)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the contents that `data` completes.

        Raises:
            ValueError: a frame is too long; no more data may be fed.
        """
        begun = self._begun
        begun += data
        complete: list[bytes] = []
        begin = 0
        while len(begun) - begin >= _LENGTH.size:
            length = _LENGTH.unpack_from(begun, begin)[0]
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = begin + _LENGTH.size + length
            if len(begun) < end:
                break
            complete.append(bytes(begun[begin + _LENGTH.size : end]))
            begin = end
        del begun[:begin]
        return complete
