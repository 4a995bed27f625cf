import base64
import hashlib
import hmac

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import tenant_key, tenant_signature
from inflight_gateway.request.headers import TENANT, TENANT_SIGNATURE
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import ServiceConfig

CHAT = ServiceConfig(ServiceKey("team-a", "chat"), uid="u-1", model="m", api_keys_secret="keys")


def test_the_tenant_key_is_the_contracts():
    digest = hmac.new(b"gateway", b"tenant/team-a/chat/u-1", hashlib.sha256).digest()
    made = tenant_key(b"gateway", CHAT.key, "u-1")
    assert made == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert len(made) == 43


def test_the_tenant_is_signed_with_its_request():
    key = tenant_key(b"gateway", CHAT.key, "u-1")
    expected = "v1=" + hmac.new(key.encode(), b"acme\nr-1", hashlib.sha256).hexdigest()
    assert EngineHeaders(b"gateway").to_set(CHAT, "acme", "r-1") == ((TENANT, "acme"), (TENANT_SIGNATURE, expected))
    assert tenant_signature(key, "acme", "r-2") != expected
    assert tenant_signature(tenant_key(b"gateway", CHAT.key, "u-2"), "acme", "r-1") != expected


def test_without_tenant_or_gateway_key_nothing_is_set():
    assert EngineHeaders(b"gateway").to_set(CHAT, "", "r-1") == ()
    assert EngineHeaders(None).to_set(CHAT, "acme", "r-1") == ()


def test_api_keys_never_reach_engines_and_other_credentials_do():
    assert EngineHeaders.to_remove(CHAT) == ("authorization", "api-key")
    assert EngineHeaders.to_remove(ServiceConfig(CHAT.key, "u-1", "m")) == ()
