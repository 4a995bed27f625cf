"""One question to the cluster's DNS service, as a client on this machine would send it (RFC 1035)."""

from __future__ import annotations

import secrets
import socket
import struct

_ANSWER_BIT, _CODE_MASK = 0x8000, 0x000F
_TYPE_A, _CLASS_IN = 1, 1


def encode_question(identifier: int, name: str) -> bytes:
    """A query for the A record of `name`."""
    header = struct.pack("!6H", identifier, 0x0100, 1, 0, 0, 0)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return header + labels + b"\0" + struct.pack("!2H", _TYPE_A, _CLASS_IN)


def is_answer(message: bytes, identifier: int) -> bool:
    """Whether `message` answers the query `identifier` with at least one record and no error."""
    if len(message) < 12:
        return False
    got, flags, _, answers, _, _ = struct.unpack("!6H", message[:12])
    return bool(got == identifier and flags & _ANSWER_BIT and not flags & _CODE_MASK and answers > 0)


def resolves(server: str, name: str, timeout_seconds: float = 1.0) -> bool:
    """Whether the DNS server at the address `server` knows `name`."""
    identifier = secrets.randbelow(1 << 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_seconds)
        try:
            client.connect((server, 53))
            client.send(encode_question(identifier, name))
            return is_answer(client.recv(512), identifier)
        except OSError:
            return False
