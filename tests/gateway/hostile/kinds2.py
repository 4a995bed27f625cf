"""Kinds of hostile requests on HTTP/2 without TLS, with prior knowledge."""

from __future__ import annotations

from random import Random

from tests.gateway.hostile import http2
from tests.gateway.hostile.case import CHAT, FORGED, OPEN, Case, Leave, chat_body

_Pairs = list[tuple[str, str]]


def _pairs(method: str = "POST", path: str = CHAT, authority: str = OPEN) -> _Pairs:
    return [(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)]


def _request(pairs: _Pairs, body: bytes | None = b"") -> bytes:
    """Builds the frames of a request. Args: body: None: none."""
    flags = http2.END_HEADERS | (http2.END_STREAM if body is None else 0)
    block, out = http2.fields(pairs), b""
    first, rest = block[:16_000], block[16_000:]
    out = http2.frame(http2.HEADERS, first, flags if not rest else flags & ~http2.END_HEADERS)
    while rest:
        part, rest = rest[:16_000], rest[16_000:]
        out += http2.frame(http2.CONTINUATION, part, 0 if rest else http2.END_HEADERS)
    if body is not None:
        parts = [body[at : at + 16_000] for at in range(0, len(body), 16_000)] or [b""]
        for number, part in enumerate(parts):
            out += http2.frame(http2.DATA, part, http2.END_STREAM if number == len(parts) - 1 else 0)
    return http2.PREFACE + http2.frame(http2.SETTINGS, stream=0) + out


_BODY = chat_body()


def fair(random: Random) -> Case:
    """Strange to a relay that speaks HTTP/1, and right."""
    extra: _Pairs = random.choice(([], [("te", "trailers")], [("cookie", "a=b")] * 40, [("x-\x7e", "v")]))
    return Case("http2 fair", (_request([*_pairs(), *extra], _BODY),), statuses=frozenset({200}), http2=True)


def methods(random: Random) -> Case:
    """HTTP/2 lets any name of a method pass."""
    method = random.choice(
        ("FOO", "foo", "QUERY", "PURGE", "CONNECT", "X" * 2000, "A-B", "G\xc9T", "", "PRI", "SOURCE")
    )
    pairs = _pairs(method, random.choice((CHAT, "/v1/models", "*", "/metrics")))
    body = random.choice((None, _BODY))
    return Case("http2 methods", (_request(pairs, body),), http2=True, patience_s=2.0, certain=False)


def heads(random: Random) -> Case:
    pairs: _Pairs = random.choice(
        (
            [*_pairs(), ("connection", "close")],
            [*_pairs(), ("transfer-encoding", "chunked")],
            [*_pairs(), ("upgrade", "websocket"), ("keep-alive", "1")],
            [*_pairs(), ("Upper-Case", "x")],
            [*_pairs(), (":path", "/metrics")],
            [*_pairs(), ("host", "twice"), ("host", "keyed.default")],
            [*_pairs(), ("content-length", "3")],
            [*_pairs(), ("content-length", "x")],
            [*_pairs(), ("x", "a\r\nx-inflight-tenant: forged")],
            [*_pairs(), ("x\r\nx-inflight-tenant", FORGED)],
            [*_pairs(), ("x", "a\0b")],
            [*_pairs(), ("", "x")],
            [*_pairs(), ("x-inflight-tenant", FORGED), ("x-envoy-original-path", FORGED)],
            _pairs(path=""),
            _pairs(path="v1/models"),
            _pairs(path="http://open.default/metrics"),
            _pairs(path="/metrics HTTP/1.1\r\nx: y"),
            _pairs(path="/v1/models\xff"),
            _pairs(path="/" + "p" * 50_000),
            _pairs(authority=""),
            _pairs(authority="twice"),
            _pairs(authority="open.default\r\nx: y"),
            _pairs()[:3],
            _pairs()[1:],
            [(":status", "200")],
            [("x", "y"), *_pairs()],
            [*_pairs(), *(((f"x-{number}", "y")) for number in range(300))],
            [*_pairs(), ("x", "y" * 70_000)],
            [*_pairs(), (":protocol", "websocket")],
        )
    )
    return Case("http2 heads", (_request(pairs, _BODY),), http2=True, patience_s=0.5, certain=False)


def frames(random: Random) -> Case:
    """Frames that break the protocol, or that end in the middle."""
    whole, frame = _request(_pairs(), _BODY), http2.frame
    bad = random.choice(
        (
            http2.PREFACE[:-3],
            http2.PREFACE + frame(http2.SETTINGS, b"xxxxx", stream=0),
            http2.PREFACE + random.randbytes(200),
            http2.PREFACE + frame(http2.SETTINGS, stream=0) + frame(http2.DATA, b"early"),
            http2.PREFACE + frame(http2.SETTINGS, stream=0) + frame(http2.HEADERS, random.randbytes(50), 5),
            http2.PREFACE + frame(http2.SETTINGS, stream=0) + frame(http2.CONTINUATION, b"x"),
            http2.PREFACE + frame(http2.SETTINGS, stream=0) + frame(http2.PING, b"12345678", stream=0) * 500,
            whole + frame(http2.RST_STREAM, b"\0\0\0\x08"),
            whole + frame(http2.WINDOW_UPDATE, b"\0\0\0\0"),
            whole + frame(http2.HEADERS, http2.fields([("x-inflight-tenant", FORGED)]), 5),
            whole + frame(http2.GOAWAY, bytes(8), stream=0),
            whole[: random.randrange(24, len(whole))],
            _request(_pairs(), None)[:-2],
        )
    )
    leave = random.choice((Leave.ANSWERED, Leave.RESET, Leave.END))
    return Case("http2 frames", (bad,), leave, http2=True, patience_s=0.15, certain=False)


def trailers(random: Random) -> Case:
    start = _request(_pairs(), b"")[:-9] + http2.frame(http2.DATA, _BODY)
    name = random.choice(("x-inflight-tenant", "x-trailer", "content-length", "host"))
    end = http2.frame(http2.HEADERS, http2.fields([(name, FORGED)]), http2.END_HEADERS | http2.END_STREAM)
    return Case("http2 trailers", (start + end,), http2=True, patience_s=2.0, certain=False)


KINDS = (fair, methods, heads, frames, trailers)
