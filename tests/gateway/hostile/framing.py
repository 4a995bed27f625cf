"""Kinds of hostile requests on HTTP/1 whose lengths, chunks or lines are wrong, or that end early."""

from __future__ import annotations

from random import Random

from tests.gateway.hostile.case import (
    CHAT,
    FORGED,
    OPEN,
    Case,
    Leave,
    chat_body,
    head,
    post,
)

_BODY = chat_body()


def smuggling(random: Random) -> Case:
    """Two lengths, or lengths that two parsers may read differently, with a request to an internal path inside."""
    hidden = head("GET", "/metrics", [("Host", OPEN), ("X-Hidden", FORGED)])
    lengths: tuple[tuple[str, ...], ...] = (
        ("Content-Length: {n}", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: {n}"),
        ("Content-Length: 5", "Content-Length: {n}"),
        ("Content-Length: {n}", "Content-Length: {n}"),
        ("Content-Length: 5, {n}",),
        ("Content-Length: +{n}",),
        ("Content-Length: -1",),
        ("Content-Length: 0x10",),
        ("Content-Length: 5 5",),
        ("Content-Length: 99999999999999999999999",),
        ("Content-Length:",),
        ("Content-Length : {n}",),
        ("Content-Length\t: {n}",),
        (" Content-Length: {n}",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked", "Content-Length: {n}"),
        ("Transfer-Encoding:\x0bchunked", "Content-Length: {n}"),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: x"),
        ("Transfer-Encoding: identity", "Content-Length: {n}"),
        ("Transfer-Encoding:", " chunked", "Content-Length: {n}"),
        ("X: y\nTransfer-Encoding: chunked", "Content-Length: {n}"),
        ("X: y\rContent-Length: 0", "Content-Length: {n}"),
        ("Transfer-Encoding: \x00chunked", "Content-Length: {n}"),
    )
    body = random.choice((b"0\r\n\r\n" + hidden, _BODY + hidden, b"5\r\nhello\r\n0\r\n\r\n" + hidden))
    lines = [line.format(n=random.choice((len(_BODY), len(body), 5))) for line in random.choice(lengths)]
    start = [f"POST {CHAT} HTTP/1.1", f"Host: {OPEN}", "Content-Type: application/json", *lines, "", ""]
    return Case("smuggling", ("\r\n".join(start).encode("latin-1") + body,), patience_s=0.15, certain=False)


def chunking(random: Random) -> Case:
    start = head("POST", CHAT, [("Host", OPEN), ("Transfer-Encoding", "chunked")])
    size = b"%x" % len(_BODY)
    part = random.choice(
        (
            b"zz\r\n" + _BODY,
            b"-1\r\n" + _BODY,
            b"ffffffffffffffffffff\r\n" + _BODY,
            b"7fffffffffffffff\r\n" + _BODY,
            size + b";ext=\x00\r\n" + _BODY + b"\r\n0\r\n\r\n",
            size + b";" + b"x" * 20_000 + b"\r\n" + _BODY + b"\r\n0\r\n\r\n",
            b" " + size + b"\r\n" + _BODY + b"\r\n0\r\n\r\n",
            size + b" \r\n" + _BODY + b"\r\n0\r\n\r\n",
            size + b"\n" + _BODY + b"\n0\n\n",
            size + b"\r\n" + _BODY + b"0\r\n\r\n",
            size + b"\r\n" + _BODY + b"\r\n",
            size + b"\r\n" + _BODY[:9],
            b"0" * 300 + size + b"\r\n" + _BODY + b"\r\n0\r\n\r\n",
            size + b"\r\n" + _BODY + b"\r\n0\r\nX-Inflight-Tenant: forged\r\nContent-Length: 3\r\n\r\n",
            b"".join(b"1\r\n%c\r\n" % byte for byte in _BODY) + b"0\r\n\r\n",
            b"",
        )
    )
    leave = random.choice((Leave.ANSWERED, Leave.END, Leave.RESET))
    return Case("chunking", (start + part,), leave, patience_s=0.15, certain=False)


def truncated(random: Random) -> Case:
    whole = post(chat_body(stream=True))
    cut = whole[: random.randrange(1, len(whole))]
    leave = random.choice((Leave.END, Leave.RESET, Leave.ANSWERED))
    return Case("truncated", (cut,), leave, patience_s=0.1, certain=False)


def slow(random: Random) -> Case:
    whole, pieces = post(_BODY), []
    while whole:
        size = random.randrange(1, 1 + len(whole))
        pieces += [whole[:size], random.choice((0.0, 0.01, 0.03))]
        whole = whole[size:]
    return Case("slow", tuple(pieces), statuses=frozenset({200}))


def garbage(random: Random) -> Case:
    line = random.choice(
        (
            random.randbytes(random.randrange(1, 400)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(60),
            b"GET / HTTP/9.9\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models HTTP/2.0\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models\r\n\r\n",
            b"get /v1/models HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"\r\n\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET  /v1/models HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET /v1/mod els HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models\x00 HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models\xff\xfe HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models\t HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models#x HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET v1/models HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET ?x HTTP/1.1\r\nHost: open.default\r\n\r\n",
            b"GET /v1/models HTTP/1.1\nHost: open.default\n\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\nX: a\x00b\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\nX: a\rb\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\nno colon\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\n: empty\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\nX\xff: a\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\nX: \xff\xfe\r\nX-Request-Id: \xff\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\nX: a\r\n folded\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: open.default\r\n" + b"X" * 3000 + b"\r\n\r\n",
        )
    )
    leave = random.choice((Leave.ANSWERED, Leave.END))
    return Case("garbage", (line,), leave, patience_s=0.15, certain=False)
