"""Streams between gateway pods, signed with the gateway key. Pure: each side is fed with the bytes of the other.

    picker -> relay: 32 random bytes
    relay -> picker: 32 random bytes, the relay's name in 32 bytes, and for each of two keys the proof of the relay
    picker -> relay: number of the key that it knows, 0 or 1, in a byte, and the proof of the picker

A proof is the HMAC-SHA256 (RFC 2104) of the sender's side, the bytes before the proofs, and the name of the picker's
pod: it holds for this connection, these two and no other use. Frames (`link.wire`) follow, in both directions: each
content begins with its MAC, BLAKE2b (RFC 7693) over the number of the frame and the rest, under a key of this
connection and direction. A frame that was changed, repeated, left out or inserted ends the stream. Contents are not
encrypted.

Relay and picker see a change of the gateway key at different times: each has the current key and the previous one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from asyncio import BaseTransport
from collections.abc import Sequence

from inflight_gateway.link import wire

HANDSHAKE_S = 5.0
"""Most seconds from the connection to the proof."""

MAX_UNPROVEN = 64
"""Most connections to a picker whose relay has not proved the key: beyond it, the oldest one is closed."""

UNANSWERED_S = 10
"""Seconds after which a connection is closed whose other end's host acknowledges nothing."""

_NONCE_BYTES = 32
_NAME_BYTES = 32
_PROOF_BYTES = 32
_KEYS = 2
_MAC_BYTES = 16
_ANSWER_BYTES = 1 + _PROOF_BYTES
_CLAIM_BYTES = _NONCE_BYTES + _NAME_BYTES
_RELAY_BYTES = _CLAIM_BYTES + _KEYS * _PROOF_BYTES
_RELAY, _PICKER = b"relay", b"picker"


class Sealed:
    """The frames of both directions of a stream, with the calls of `wire.Frames`."""

    def __init__(self, sends: bytes, takes: bytes) -> None:
        self._frames = wire.Frames()
        self._sends = hashlib.blake2b(key=sends, digest_size=_MAC_BYTES)
        self._takes = hashlib.blake2b(key=takes, digest_size=_MAC_BYTES)
        self._sent = self._taken = 0

    def frame(self, messages: Sequence[wire.FromRelay | wire.FromPicker]) -> bytes:
        """Returns the frame of these messages, which is sent next."""
        content = wire.encode(messages)
        mac = _mac(self._sends, self._sent, content)
        self._sent += 1
        return wire.framed(mac + content)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the contents that `data` completes.

        Raises:
            ValueError: a frame is too long or not the other side's next one; no more data may be fed.
        """
        return [self._open(sealed) for sealed in self._frames.feed(data)]

    def _open(self, sealed: bytes) -> bytes:
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(_mac(self._takes, self._taken, content), mac):
            raise ValueError(f"frame {self._taken} has a wrong MAC")
        self._taken += 1
        return content


class Accepting:
    """The picker's side of a connection until the relay has proved the key.

    Args:
        keys: the current gateway key, and the previous one if there is one. pod: name of the picker's pod.

    Attributes:
        greeting: the first bytes to send.
        sealed: the stream, once the key is proved; None before.
    """

    def __init__(self, keys: Sequence[bytes], pod: str) -> None:
        self.greeting = secrets.token_bytes(_NONCE_BYTES)
        self.sealed: Sealed | None = None
        self._keys = keys
        self._pod = pod
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """Returns the answer to send; empty: the proof is not complete.

        Raises:
            ValueError: the relay does not have the key; the connection is to be closed.
        """
        if len(self._begun) + len(data) > _RELAY_BYTES:
            raise ValueError("the relay sends more than its proof")
        self._begun += data
        if len(self._begun) < _RELAY_BYTES:
            return b""
        claim, proofs = self._begun[:_CLAIM_BYTES], self._begun[_CLAIM_BYTES:]
        said = _said(self.greeting, claim, self._pod)
        for number in range(_KEYS):
            proof = proofs[number * _PROOF_BYTES : (number + 1) * _PROOF_BYTES]
            for key in self._keys:
                if hmac.compare_digest(_proof(key, _RELAY, said), proof):
                    self.sealed = Sealed(_session(key, _PICKER, said), _session(key, _RELAY, said))
                    return bytes([number]) + _proof(key, _PICKER, said)
        raise ValueError("the relay does not have the gateway key, or wants another pod")


class Proving:
    """The relay's side of a connection until both have proved the key.

    Args:
        keys: as in `Accepting`, at least one. relay: its name, at most 32 ASCII characters. pod: name of the pod that
            the picker must be of.

    Attributes:
        sealed: the stream, once the picker has proved the key; None before.
        rest: bytes of the stream that followed the picker's proof.
    """

    def __init__(self, keys: Sequence[bytes], relay: str, pod: str) -> None:
        self.sealed: Sealed | None = None
        self.rest = b""
        self._keys = tuple(keys)[:_KEYS]
        self._claim = secrets.token_bytes(_NONCE_BYTES) + relay.encode("ascii").ljust(_NAME_BYTES, b"\0")
        self._pod = pod
        self._said = b""
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """Returns bytes to send, if any.

        Raises:
            ValueError: the picker does not have the key; the connection is to be closed.
        """
        begun = self._begun = self._begun + data
        if not self._said:
            if len(begun) < _NONCE_BYTES:
                return b""
            self._said = _said(begun[:_NONCE_BYTES], self._claim, self._pod)
            self._begun = begun[_NONCE_BYTES:]
            proofs = b"".join(_proof(key, _RELAY, self._said) for key in self._keys)
            return self._claim + proofs.ljust(_KEYS * _PROOF_BYTES, b"\0")
        if len(begun) >= _ANSWER_BYTES:
            number, proof = begun[0], begun[1:_ANSWER_BYTES]
            known = number < len(self._keys)
            if not known or not hmac.compare_digest(_proof(self._keys[number], _PICKER, self._said), proof):
                raise ValueError("the picker does not have the gateway key")
            key = self._keys[number]
            self.sealed = Sealed(_session(key, _RELAY, self._said), _session(key, _PICKER, self._said))
            self.rest = begun[_ANSWER_BYTES:]
        return b""


def watch(transport: BaseTransport) -> None:
    """Lets the kernel close a TCP connection whose other end's host has gone without a word, within 2 *
    `UNANSWERED_S`."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, UNANSWERED_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNANSWERED_S),
    ):
        connection.setsockopt(level, option, value)


def _said(greeting: bytes, claim: bytes, pod: str) -> bytes:
    return greeting + claim + pod.encode()


def _proof(key: bytes, side: bytes, said: bytes) -> bytes:
    return hmac.digest(key, b"link/proof of " + side + b"\n" + said, "sha256")


def _session(key: bytes, sender: bytes, said: bytes) -> bytes:
    """Returns the key of the frames of one direction."""
    return hmac.digest(key, b"link/frames of " + sender + b"\n" + said, "sha256")


def _mac(keyed: hashlib.blake2b, number: int, content: bytes) -> bytes:
    state = keyed.copy()
    state.update(number.to_bytes(8, "big"))
    state.update(content)
    return state.digest()
