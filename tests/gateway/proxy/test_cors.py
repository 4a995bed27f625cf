"""A real Envoy: pages of other origins, in browsers (CORS)."""

from __future__ import annotations

import pytest

from tests.gateway.proxy import tokens

PAGE = "https://chat.example"
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/models", "/tokenize", "/unknown")


async def preflight(edge, path, origin=PAGE):
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-any"}
    return await edge.send("OPTIONS", path, headers=asked)


@pytest.mark.parametrize("origins", [(PAGE, "http://localhost:3000"), ("*",)])
async def test_a_page_of_a_named_origin_may_ask_each_path_and_read_its_answer(edge, origins):
    await edge.start(*(f"--allowed-origin={origin}" for origin in origins))
    for path in PATHS:
        status, _, headers = await preflight(edge, path)
        assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
        assert {"GET", "POST"} <= set(headers["access-control-allow-methods"].split(", "))
        # Browsers take * for all headers but Authorization.
        assert {"*", "authorization"} == set(headers["access-control-allow-headers"].split(", "))
        assert "access-control-allow-credentials" not in headers
    assert edge.relays[0].seen == []
    status, _, headers = await edge.send("POST", PATHS[0], headers={"Origin": PAGE}, json={})
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
    assert {"x-request-id", "retry-after"} <= set(headers["access-control-expose-headers"].split(", "))


async def test_a_page_may_read_the_error_of_too_many_requests(edge):
    await edge.start("--allowed-origin", PAGE, "--requests-per-second", "1")
    while (answer := await edge.send("POST", headers={"Origin": PAGE}))[0] == 200:
        pass
    assert (answer[0], answer[2]["access-control-allow-origin"]) == (429, PAGE)


async def test_preflights_need_no_token(edge, tmp_path):
    (tmp_path / "jwks.json").write_text(tokens.Issuer().jwks)
    jwt = ("--jwt-issuer", "https://issuer.example", "--jwks-file", str(tmp_path / "jwks.json"))
    await edge.start("--allowed-origin", PAGE, *jwt)
    assert (await preflight(edge, PATHS[0]))[0] == 200


@pytest.mark.parametrize(
    ("flags", "origin"), [((), PAGE), (("--allowed-origin", PAGE), "https://other.example"), ((), "null")]
)
async def test_a_page_of_another_origin_may_not_read_answers(edge, flags, origin):
    await edge.start(*flags)
    for status, _, headers in (
        await preflight(edge, PATHS[0], origin),
        await edge.send("POST", PATHS[0], headers={"Origin": origin}),
    ):
        assert status == 200  # of the stand-in; relays answer the first with 405
        assert not [name for name in headers if name.lower().startswith("access-control")]
    assert [request.method for request, _ in edge.relays[0].seen] == ["OPTIONS", "POST"]
