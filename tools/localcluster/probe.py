"""Readiness questions to the components, by the addresses that Kubernetes' own deployments probe, and to its DNS."""

from __future__ import annotations

import http.client
import secrets
import socket
import ssl
import struct
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

_ANSWER_BIT, _CODE_MASK = 0x8000, 0x000F
_TYPE_A, _CLASS_IN = 1, 1


def client_context(pki: Path, user: str, authority: str = "ca") -> ssl.SSLContext:
    """TLS as `user`, trusting `authority`; names of files in the folder `pki` without their suffix."""
    context = ssl.create_default_context(cafile=str(pki / f"{authority}.crt"))
    context.load_cert_chain(pki / f"{user}.crt", pki / f"{user}.key")
    return context


def loopback_context() -> ssl.SSLContext:
    """TLS to a component that signed its own certificate, for a health question on loopback only."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def answers_ok(url: str, context: ssl.SSLContext | None = None, timeout_seconds: float = 2.0) -> bool:
    """Returns whether a GET of `url` answers 200 in time. It bypasses proxies of the environment."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout_seconds) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return False


def succeeds(command: Sequence[str], timeout_seconds: float = 10.0) -> bool:
    """Returns whether `command` ends with 0 in time."""
    try:
        return subprocess.run(list(command), capture_output=True, check=False, timeout=timeout_seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def encode_question(identifier: int, name: str) -> bytes:
    """A DNS query for the A record of `name` (RFC 1035)."""
    header = struct.pack("!6H", identifier, 0x0100, 1, 0, 0, 0)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return header + labels + b"\0" + struct.pack("!2H", _TYPE_A, _CLASS_IN)


def is_answer(message: bytes, identifier: int) -> bool:
    """Returns whether `message` answers the query `identifier` with at least one record and no error."""
    if len(message) < 12:
        return False
    got, flags, _, answers, _, _ = struct.unpack("!6H", message[:12])
    return bool(got == identifier and flags & _ANSWER_BIT and not flags & _CODE_MASK and answers > 0)


def resolves(server: str, name: str, timeout_seconds: float = 1.0) -> bool:
    """Returns whether the DNS server at the address `server` knows `name`."""
    identifier = secrets.randbelow(1 << 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_seconds)
        try:
            client.connect((server, 53))
            client.send(encode_question(identifier, name))
            return is_answer(client.recv(512), identifier)
        except OSError:
            return False
