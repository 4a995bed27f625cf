"""A real Envoy that verifies JSON Web Tokens."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiohttp import web

from tests.gateway.proxy.certificates import new_certificate
from tests.gateway.proxy.tokens import NAME, Issuer

TENANT = "x-inflight-jwt-tenant"


@pytest.fixture
def issuer():
    return Issuer()


@pytest.fixture
async def verifying(edge, tmp_path, issuer):
    (tmp_path / "jwks.json").write_text(issuer.jwks)
    flags = ("--jwt-issuer", NAME, "--jwt-audience", "inflight", "--jwks-file", str(tmp_path / "jwks.json"))
    await edge.start(*flags)
    return edge


def bearer(token):
    return {"authorization": f"Bearer {token}"}


async def forwarded(edge, headers):
    """The headers that reach the relay."""
    status, _, _ = await edge.ask(headers=headers)
    assert status == 200
    return edge.relays[0].seen[-1][0].headers


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_tenant_of_a_valid_token_reaches_the_relay_and_the_token_does_not(verifying, issuer, scheme):
    token = issuer.token(tenant="acme")
    headers = await forwarded(verifying, {"authorization": f"{scheme} {token}", TENANT: "forged"})
    assert headers.getall(TENANT) == ["acme"]
    assert "authorization" not in headers


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer ifk_" + "a" * 43,
        "Bearer a.b",
        "Bearer sk-a.b.c",
        "Basic eyJh.eyJh.c",
        "Bearer",
        "Bearer eyJhbGciOi",
    ],
)
async def test_what_is_no_token_passes_to_the_check_of_keys_without_a_tenant(verifying, authorization):
    given = {TENANT: "forged"} | ({} if authorization is None else {"authorization": authorization})
    headers = await forwarded(verifying, given)
    assert TENANT not in headers
    assert headers.get("authorization") == authorization


@pytest.mark.parametrize(
    "wrong",
    ["other key", "other issuer", "expired", "without an end", "without a signature", "no algorithm"],
)
async def test_a_token_that_is_not_valid_is_401(verifying, issuer, wrong):
    token = {
        "other key": lambda: Issuer().token(tenant="acme"),
        "other issuer": lambda: issuer.token(tenant="acme", iss="https://other.example"),
        "expired": lambda: issuer.token(tenant="acme", exp=1_600_000_000),
        "without an end": lambda: issuer.token(tenant="acme", exp=None),
        "without a signature": lambda: issuer.token(tenant="acme").rpartition(".")[0] + ".",
        "no algorithm": lambda: "eyJhbGciOiJub25lIn0." + issuer.token(tenant="acme").split(".")[1] + ".",
    }[wrong]()
    status, body, headers = await verifying.ask(headers=bearer(token))
    assert (status, body["error"]["type"], body["error"]["code"]) == (401, "authentication_error", "invalid_token")
    assert "Jwt" in body["error"]["message"]
    assert headers["www-authenticate"].startswith("Bearer")
    assert not verifying.relays[0].seen


async def test_a_valid_token_without_the_claim_names_no_tenant(verifying, issuer):
    headers = await forwarded(verifying, {**bearer(issuer.token()), TENANT: "forged"})
    assert TENANT not in headers
    assert "authorization" not in headers


async def test_a_nested_claim_names_the_tenant(edge, tmp_path, issuer):
    (tmp_path / "jwks.json").write_text(issuer.jwks)
    await edge.start("--jwt-issuer", NAME, "--jwks-file", str(tmp_path / "jwks.json"), "--jwt-tenant-claim", "a.team")
    headers = await forwarded(edge, bearer(issuer.token(a={"team": "search"})))
    assert headers[TENANT] == "search"


async def test_a_token_for_another_audience_is_403(verifying, issuer):
    status, body, _ = await verifying.ask(headers=bearer(issuer.token(tenant="acme", aud="other")))
    assert (status, body["error"]["type"], body["error"]["code"]) == (403, "permission_error", "invalid_token")
    assert not verifying.relays[0].seen


@pytest.mark.parametrize("trusted", [True, False])
async def test_keys_are_fetched_from_the_issuer_whose_certificate_is_verified(edge, tmp_path, issuer, trusted):
    async def keys(request):
        return web.Response(text=issuer.jwks, content_type="application/json")

    new_certificate(tmp_path, "issuer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    if not trusted:
        new_certificate(tmp_path, "other")
    runner = web.ServerRunner(web.Server(keys))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        uri = f"https://localhost:{port}/keys"
        await edge.start("--jwt-issuer", NAME, "--jwks-uri", uri, "--jwks-ca", str(tmp_path / "tls.crt"))
        status, body, _ = await edge.ask(headers=bearer(issuer.token(tenant="acme")))
        # On a busy machine Envoy gives its first fetch up, and fetches again for the next request.
        for _ in range(20 if trusted else 0):
            if status == 200:
                break
            await asyncio.sleep(0.5)
            status, body, _ = await edge.ask(headers=bearer(issuer.token(tenant="acme")))
    finally:
        await runner.cleanup()
    if trusted:
        assert status == 200
        assert edge.relays[0].seen[0][0].headers[TENANT] == "acme"
    else:
        assert (status, body["error"]["code"]) == (401, "invalid_token")
