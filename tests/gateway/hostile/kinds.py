"""Kinds of hostile requests on HTTP/1: each makes a case from a source of random numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.gateway.hostile import framing
from tests.gateway.hostile.bodies import hostile_body
from tests.gateway.hostile.case import (
    ASLEEP,
    CHAT,
    FORGED,
    KEYED,
    OPEN,
    PATHS,
    RIGHT_KEY,
    TWICE,
    Case,
    Header,
    Leave,
    chat_body,
    fields_of,
    head,
    post,
)

_BODY = chat_body()
_GET = head("GET", "/v1/models", [("Host", OPEN)])

DECOY = "DECOY"
"""Replaced by the address of a listener that nothing may connect to."""


def good(random: Random) -> Case:
    target = random.choice((CHAT, *PATHS))
    fields = fields_of(target)
    if "max_tokens" in fields or "max_output_tokens" in fields:
        fields["stream"] = random.random() < 0.5
    key = random.choice(("Authorization", "X-Api-Key", "Api-Key"))
    value = f"Bearer {RIGHT_KEY}" if key == "Authorization" else RIGHT_KEY
    host, headers = random.choice(((OPEN, ()), (KEYED, ((key, value),))))
    whole = post(json.dumps(fields).encode(), *headers, target=target, host=host)
    return Case("good", (whole,), statuses=frozenset({200}), good=True)


def bodies(random: Random) -> Case:
    target = random.choice(PATHS)
    kind = random.choice(("application/json",) * 4 + ("text/plain", "", "multipart/form-data; boundary=x", "\xff"))
    return Case("bodies", (post(hostile_body(random, target), target=target, content_type=kind),))


_METHODS = (
    *("OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "HEAD", "PROPFIND", "SEARCH", "QUERY", "PURGE", "M-SEARCH", "LINK"),
    *("FOO", "SOURCE", "PRI", "REPORT", "MKCALENDAR", "ACL", "BIND", "SUBSCRIBE", "GETX", "A" * 3000, "PO\u00d6ST"),
)


def methods(random: Random) -> Case:
    method = random.choice(_METHODS)
    target = random.choice((CHAT, "/v1/models", "*", "/metrics", "/"))
    start = head(method, target, [("Host", OPEN), *((("Content-Length", "5"),) if random.random() < 0.3 else ())])
    whole = start + (b"hello" if b"Length" in start else b"")
    return Case("methods", (whole,), head=method == "HEAD", patience_s=2.0, certain=False)


def large_heads(random: Random) -> Case:
    headers: list[Header] = random.choice(
        (
            [("X-Big", "x" * random.choice((7_000, 9_000, 30_000, 59_000, 61_000, 200_000)))],
            [(f"X-{number}", "y") for number in range(random.choice((80, 95, 97, 100, 101, 500, 3000)))],
            [("X", "y")] * random.choice((90, 1500)),
            [("Cookie", "a=b; " * random.choice((1000, 11_000, 20_000)))],
            [("N" * random.choice((5_000, 50_000, 70_000)), "v")],
            [("X-Request-Id", "r" * random.choice((300, 20_000, 50_000)))],
            [("User-Agent", "u" * 40_000), ("Accept", "a" * 18_000)],
        )
    )
    whole = post(_BODY, *headers)
    if random.random() < 0.3:
        whole = head("GET", "/v1/models?" + "q" * random.choice((8_000, 30_000, 58_000, 90_000)), [("Host", OPEN)])
    return Case("large heads", (whole,), certain=False, patience_s=2.0)


_INTERNAL = (
    *("x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "x-inflight-service"),
    *("x-inflight-avoid", "x-inflight-attempt", "x-inflight-endpoint", "x-inflight-first-token-within"),
    *("x-inflight-progress", "x-inflight-tenant", "x-inflight-tenant-signature", "x-inflight-anything"),
    *("X-Inflight-Tenant", "X-GATEWAY-DESTINATION-ENDPOINT", "x-envoy-max-retries", "x-envoy-retry-on"),
    *("x-envoy-original-dst-host", "x-envoy-upstream-rq-timeout-ms", "x-envoy-internal", "x-envoy-force-trace"),
    *("x-envoy-decorator-operation", "x-envoy-downstream-service-cluster", "x-envoy-expected-rq-timeout-ms"),
    *("x-envoy-hedge-on-per-try-timeout", "x-envoy-attempt-count", "x-envoy-original-path", "x-envoy-anything"),
    *("x-envoy-upstream-rq-per-try-timeout-ms", "x-envoy-ip-tags", "x-envoy-retriable-status-codes"),
)


def forged(random: Random) -> Case:
    """Headers that only parts of the gateway may set. None of them changes where a good request goes."""
    values = (FORGED, f"{DECOY},{FORGED}", f"{DECOY}", f"default/{FORGED}", f"1 {FORGED}", FORGED + "\t", "")
    headers = [(random.choice(_INTERNAL), random.choice(values)) for _ in range(random.randint(1, 6))]
    headers += random.choice(([], [("Connection", "x-request-id, content-type, x-inflight-attempt")]))
    if random.random() < 0.2:
        headers.append(("X-Inflight-Attempt", random.choice(("1", "2", "99"))))
        return Case("forged", (post(_BODY, *headers, host=KEYED),), statuses=frozenset({401, 429}))
    return Case("forged", (post(_BODY, *headers),), statuses=frozenset({200}))


def hosts(random: Random) -> Case:
    body = chat_body(model="nobody's")
    host = random.choice(
        (
            *(
                "",
                " ",
                "open.default, keyed.default",
                "open@keyed.default",
                "open",
                TWICE,
                TWICE.upper(),
                f"{TWICE}.",
                "open.default.evil.example",
            ),
            *(
                "[::1",
                "[::1]:80",
                "open.default:99999",
                "open.default:abc",
                "open.default/..",
                "\xff",
                "%6fpen",
                "a" * 5000,
                "..",
                "open..default",
            ),
            *(
                "open.other",
                "nobody",
                "127.0.0.1",
                "open.default\x0bkeyed",
                "http://open.default",
                "open.default;x",
                "-",
                "*",
                "open.default.svc.x",
            ),
        )
    )
    whole = random.choice(
        (
            post(body, host=host),
            post(body, host=host),
            post(body, ("Host", host), host="nobody"),
            post(body, host=host, target=f"http://{TWICE}{CHAT}"),
            head("POST", CHAT, [("Content-Length", "2")]) + b"{}",
            post(body, target="http://", host="nobody"),
            post(body, target="http://[::1", host="nobody"),
            post(body, target="ftp://nobody/v1/models", host="nobody"),
            post(body, target=f"http://user@{TWICE}:1{CHAT}", host="nobody"),
        )
    )
    return Case("hosts", (whole,), patience_s=3.0, certain=False)


_TRICKS = (
    *("/metrics", "/admin", "/admin/drain", "/ready", "/v1/runtime_config", "//metrics", "/./metrics", "/x/../metrics"),
    *("/%6detrics", "/%6Detrics", "/admin%2fdrain", "/admin%2Fdrain", "/%61dmin/x", "/v1/../admin/x", "/metrics/"),
    *("/metrics?x", "/metrics%3fx", "/metrics;x", "/metrics%00", "/metrics%20", "\\metrics", "/v1\\..\\metrics"),
    *("/v1/%2e%2e/metrics", "/%2e/metrics", "/v1/models/../../metrics", "/v1//runtime_config", "///admin//x"),
    *("/metrics%2f", "/%2fmetrics", "/%2f%2fmetrics", "/v1/models%2f..%2f..%2fmetrics", "/.%2fmetrics"),
    *(
        "http://open.default/metrics",
        "http://open.default/%6detrics",
        "/%",
        "/%zz",
        "/%u006detrics",
        "/?/metrics",
        "/v1/runtime%5fconfig",
    ),
    *("/metrics#", "/metrics%23", "/v1/runtime_config/", "/%5cmetrics", "/..%5cmetrics", "/../../etc/passwd"),
)


def tricks(random: Random) -> Case:
    """Paths that mean an engine's internal pages to some reader."""
    target, method = random.choice(_TRICKS), random.choice(("GET", "GET", "POST", "HEAD"))
    start = [("Host", OPEN), *((("Content-Length", "2"),) if method == "POST" else ())]
    whole = head(method, target, start) + (b"{}" if method == "POST" else b"")
    statuses = frozenset(range(300, 500))
    return Case("tricks", (whole,), statuses=statuses, head=method == "HEAD", patience_s=3.0, certain=False)


def disguised(random: Random) -> Case:
    """Generations under another spelling of their path would escape the count of tokens. Envoy itself undoes others."""
    spelled = ("/v1/chat%2fcompletions", "/v1%2Fchat/completions?x=1", "/v1%2fcompletions", "/v1%2Fgenerate")
    return Case("disguised", (post(_BODY, target=random.choice(spelled)),), statuses=frozenset({404}))


def keys(random: Random) -> Case:
    """A request without a valid key, whose answer must say nothing else."""
    wrong = random.choice(
        (
            *(
                "Bearer ifk_wrong",
                "Bearer",
                "Bearer ",
                "Basic ifk_right",
                RIGHT_KEY,
                f"Bearer {RIGHT_KEY}x",
                "bearer \xff\xfe",
            ),
            *(f"Bearer {RIGHT_KEY} {RIGHT_KEY}", "Bearer " + "k" * 9_000, "Bearer " + "k" * 40_000, "", "Bearer null"),
            *("Bearer '--", "Bearer \t", f"Bearer {RIGHT_KEY},", "Token x", "Bearer ../../keys", "Bearer %00"),
        )
    )
    headers: list[Header] = random.choice(
        (
            [("Authorization", wrong)],
            [],
            [("Api-Key", wrong.removeprefix("Bearer "))] if wrong.removeprefix("Bearer ") != RIGHT_KEY else [],
            [("Authorization", wrong), ("Authorization", wrong)],
            [("Authorization", wrong), ("Api-Key", "ifk_other")],
            [("X-Api-Key", RIGHT_KEY[:4]), ("Cookie", "authorization=Bearer x")],
        )
    )
    if ("Api-Key", RIGHT_KEY) in headers:
        headers = []
    body = random.choice((_BODY, chat_body(model="k"), b"", b"{", hostile_body(random)))
    if b"inflight_continuation" in body:  # the relay says 400 to it first
        body = _BODY
    return Case("keys", (post(body, *headers, host=KEYED),), statuses=frozenset({401, 429, 431}))


def leaving(random: Random) -> Case:
    """Clients that go while they wait, or while they are answered."""
    if random.random() < 0.3:
        pieces = (post(chat_body(), host=ASLEEP), random.choice((0.0, 0.02, 0.1)))
        return Case("leaving", pieces, Leave.RESET, certain=False)
    whole = post(chat_body(stream=random.random() < 0.7))
    pause = random.choice((0.0, 0.0, 0.001, 0.005))
    return Case("leaving", (whole, pause), random.choice((Leave.RESET, Leave.FIRST_BYTE, Leave.END)), certain=False)


def old_versions(random: Random) -> Case:
    headers: list[Header] = random.choice(([("Host", OPEN)], [], [("Host", OPEN), ("Connection", "keep-alive")]))
    whole = head("POST", CHAT, [*headers, ("Content-Length", str(len(_BODY)))], "HTTP/1.0") + _BODY
    return Case("old versions", (whole,), patience_s=3.0, certain=False)


def pipelined(random: Random) -> Case:
    """Several requests at once on a connection, bad ones among them; the first is good and is answered."""
    others = [_GET, post(_BODY), post(b"{"), post(_BODY, host="nobody"), _GET[:-7] + b"\r\n\r\n", b"\0\0\r\n\r\n"]
    chosen = [random.choice(others) for _ in range(random.randint(1, 5))]
    return Case("pipelined", (post(_BODY) + b"".join(chosen),), answers=1)


def expecting(random: Random) -> Case:
    value = random.choice(("100-continue", "100-Continue", "nonsense", "100-continue, 100-continue", "200-ok"))
    whole = post(_BODY, ("Expect", value))
    cut = len(whole) - len(_BODY)
    if random.random() < 0.4:
        leave = random.choice((Leave.RESET, Leave.END))
        return Case("expecting", (whole[:cut], 0.01), leave, patience_s=0.1, certain=False)
    return Case("expecting", (whole[:cut], 0.005, whole[cut:]))


def upgrades(random: Random) -> Case:
    fields: list[Header] = random.choice(
        (
            [
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Key", "x"),
                ("Sec-WebSocket-Version", "13"),
            ],
            [("Upgrade", "h2c"), ("Connection", "Upgrade, HTTP2-Settings"), ("HTTP2-Settings", "AAMAAABk")],
            [("Upgrade", "TLS/1.0"), ("Connection", "upgrade")],
            [("Upgrade", "websocket")],
            [("Connection", "Upgrade")],
        )
    )
    if random.random() < 0.3:
        whole = head("CONNECT", random.choice((DECOY, "open.default:80", "/", "")), [("Host", DECOY)])
        return Case("upgrades", (whole,), patience_s=2.0, certain=False)
    whole = random.choice((head("GET", "/v1/models", [("Host", OPEN), *fields]), post(_BODY, *fields)))
    return Case("upgrades", (whole,), patience_s=2.0, certain=False)


def continuations(random: Random) -> Case:
    """Fields that only a relay may send, under all their spellings."""
    name = random.choice(("inflight_continuation", "\\u0069nflight_continuation", "inflight\\u005fcontinuation"))
    value = random.choice(("null", "{}", "1", json.dumps({"choices": [{"token_ids": [1]}], "created": 1})))
    body = b'{"messages":[{"role":"user","content":"x"}],"%b":%b}' % (name.encode(), value.encode())
    headers = random.choice(((), (("x-inflight-progress", "1"),)))
    target = random.choice(PATHS)
    return Case("continuations", (post(body, *headers, target=target),), statuses=frozenset({400}))


_FRAMING = (framing.smuggling, framing.chunking, framing.truncated, framing.slow, framing.garbage)

KINDS: tuple[Callable[[Random], Case], ...] = (
    *(bodies, bodies, bodies, *_FRAMING, methods, large_heads, forged, forged, hosts, tricks, disguised, keys, keys),
    *(leaving, leaving, old_versions, pipelined, expecting, upgrades, continuations),
)


def with_decoy(case: Case, address: str) -> Case:
    pieces = tuple(
        piece.replace(DECOY.encode(), address.encode()) if isinstance(piece, bytes) else piece for piece in case.pieces
    )
    return replace(case, pieces=pieces)
