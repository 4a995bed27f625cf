"""Checks of requests by their heads."""

from __future__ import annotations

import hashlib
import json

import pytest

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.relay.http.client import Request
from inflight_gateway.relay.intake.admission import Admission, Admitted, Refused
from inflight_gateway.relay.intake.bodies import MAX_OTHER_BYTES
from inflight_gateway.relay.intake.wrong_keys import BURST
from inflight_gateway.settings import MAX_BODY_BYTES
from inflight_gateway.tenants import keys as tenant_keys
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import ServiceConfig

CHAT, OPEN, TOKEN = ServiceKey("a", "chat"), ServiceKey("a", "open"), ServiceKey("a", "token")
GENERATE = b"/v1/completions"


def secret(**tenants: str) -> dict[str, bytes]:
    return {
        f"key-{tenant}": json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}).encode()
        for tenant, key in tenants.items()
    }


def catalog(by_model: bool = False, **more: object) -> Catalog:
    known = Catalog(Hosts(by_model=True)) if by_model else Catalog()
    known.update(
        services={
            CHAT: ServiceConfig(CHAT, "1", "model", api_keys_secret="keys"),
            OPEN: ServiceConfig(OPEN, "2", "open-model"),
            TOKEN: ServiceConfig(TOKEN, "3", "token-model", jwt_tenants=("acme", "other")),
        },
        secrets={ObjectKey("a", "keys"): secret(acme="right")},
        complete=True,
        **more,
    )
    return known


@pytest.fixture
def admission() -> Admission:
    made = Admission(catalog())
    made.engine_headers = EngineHeaders(b"k" * 43)
    return made


def head(host=b"chat.a", path=GENERATE, key=b"right", method=b"POST", length=10, token=None, **headers) -> Request:
    pairs = [(b"host", host), (b"x-forwarded-for", b"1.2.3.4, 10.0.0.9")]
    if key:
        pairs.append((b"authorization", b"Bearer " + key))
    pairs += [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return Request(method, path, pairs, length, token_tenant=token)


def check(admission: Admission, request: Request, now: float = 0.0) -> Admitted | Refused:
    return admission.check(request, now, 1e9)


def code(answer: Admitted | Refused) -> tuple[int, str | None]:
    assert isinstance(answer, Refused), answer
    return answer.error.status, answer.error.code


def test_a_right_key_gives_tenant_and_key_id(admission):
    admitted = check(admission, head())
    assert isinstance(admitted, Admitted)
    assert (admitted.config.key, admitted.tenant, admitted.key_id) == (CHAT, "acme", "key-acme")
    assert admitted.owner.keyed
    assert check(admission, head(key=b"", api_key=b"right")).tenant == "acme"
    assert check(admission, head(path=b"/v1/messages", key=b"", x_api_key=b"right")).tenant == "acme"


def test_services_without_keys_take_requests_as_they_are(admission):
    admitted = check(admission, head(b"open.a", key=b"whatever"))
    assert (admitted.tenant, admitted.key_id, admitted.owner.keyed) == ("", "", False)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (head(b"gone.a"), (404, "service_not_found")),
        (head(b"chat"), (404, "service_not_found")),
        (head(path=b"/metrics"), (404, "not_found")),
        (head(path=b"//v1/completions"), (404, "not_found")),
        (head(path=b"/v1/%63ompletions"), (404, "not_found")),
        (head(path=b"/favicon.ico", method=b"GET"), (404, "not_found")),
        (head(method=b"GET"), (405, "method_not_allowed")),
        (head(path=b"/v1/models", method=b"DELETE"), (405, "method_not_allowed")),
        (head(key=b""), (401, "invalid_api_key")),
        (head(key=b"wrong"), (401, "invalid_api_key")),
        (head(path=b"/v1/models", method=b"GET", key=b"wrong"), (401, "invalid_api_key")),
        (head(path=b"/tokenize", key=b"wrong"), (401, "invalid_api_key")),
        (head(length=MAX_BODY_BYTES + 1), (413, "request_too_large")),
        (head(path=b"/tokenize", length=MAX_OTHER_BYTES + 1), (413, "request_too_large")),
    ],
)
def test_what_a_head_shows_is_refused_before_its_body(admission, request_, expected):
    assert code(check(admission, request_)) == expected


def test_refused_methods_are_told_the_right_ones(admission):
    error = check(admission, head(path=b"/v1/models", method=b"PUT")).error
    assert dict(error.headers)[b"allow"] == b"GET, HEAD"


def test_health_needs_no_key(admission):
    assert isinstance(check(admission, head(path=b"/health", method=b"GET", key=b"")), Admitted)


def test_before_the_services_are_known_no_client_is_told_that_its_service_does_not_exist():
    assert code(check(Admission(Catalog()), head())) == (503, "gateway_starting")


def test_services_with_keys_are_not_served_unsigned(admission):
    """Engines would take their requests as those of one common tenant."""
    admission.engine_headers = EngineHeaders(None)
    assert code(check(admission, head()))[0] == 503
    assert code(check(admission, head(key=b"wrong")))[0] == 401
    assert isinstance(check(admission, head(b"open.a")), Admitted)
    assert isinstance(check(admission, head(path=b"/v1/models", method=b"GET")), Admitted)


def test_without_its_secret_a_service_answers_503():
    known = catalog()
    known.update(secrets={ObjectKey("a", "keys"): None})
    assert code(check(Admission(known), head())) == (503, "api_keys_unavailable")


@pytest.mark.parametrize(
    ("token", "key", "expected"),
    [
        (b"acme", b"", "acme"),
        (b"other", b"whatever", "other"),
        (b"third", b"", (403, "tenant_not_allowed")),
        (b"", b"", (403, "tenant_not_allowed")),
        (None, b"right", (401, "invalid_api_key")),
    ],
)
def test_a_verified_token_names_an_allowed_tenant(admission, token, key, expected):
    answer = check(admission, head(b"token.a", key=key, token=token))
    assert (answer.tenant if isinstance(answer, Admitted) else code(answer)) == expected


@pytest.mark.parametrize(
    ("token", "fits"), [(b"any-tenant_1", True), (b"", False), (b"a b", False), (b"x" * 64, False)]
)
def test_all_tenants_of_tokens_are_still_names_of_tenants(token, fits):
    known = catalog()
    known.update(services={TOKEN: ServiceConfig(TOKEN, "3", "m", jwt_tenants=("*",))})
    admission = Admission(known)
    admission.engine_headers = EngineHeaders(b"k" * 43)
    assert isinstance(check(admission, head(b"token.a", key=b"", token=token)), Admitted) == fits


def test_a_service_with_both_takes_a_right_key_or_an_allowed_token():
    known = catalog()
    known.update(services={CHAT: ServiceConfig(CHAT, "1", "model", api_keys_secret="keys", jwt_tenants=("other",))})
    admission = Admission(known)
    admission.engine_headers = EngineHeaders(b"k" * 43)
    assert check(admission, head()).tenant == "acme"
    assert check(admission, head(key=b"", token=b"other")).tenant == "other"
    assert check(admission, head(key=b"", api_key=b"right", token=b"third")).tenant == "acme"
    assert code(check(admission, head(key=b"", token=b"third"))) == (403, "tenant_not_allowed")
    assert code(check(admission, head(key=b"")))[0] == 401


def test_a_token_opens_no_service_that_takes_none(admission):
    assert code(check(admission, head(key=b"", token=b"acme")))[0] == 401
    assert check(admission, head(b"open.a", token=b"acme")).tenant == ""


def test_many_wrong_keys_of_one_peer_are_refused_unreported(admission):
    for number in range(int(BURST)):
        assert check(admission, head(key=b"wrong %d" % number)).counted
    answer = check(admission, head(key=b"wrong"))
    assert code(answer) == (429, "too_many_wrong_keys")
    assert not answer.counted
    other = head(key=b"wrong")
    other.headers[1] = (b"x-forwarded-for", b"10.0.0.9, 10.0.0.8")
    assert code(check(admission, other))[0] == 401
    assert isinstance(check(admission, head(b"open.a")), Admitted)


def test_a_right_key_that_was_not_seen_before_passes_behind_the_address_of_an_attacker(admission):
    for _ in range(int(BURST) + 5):
        check(admission, head(key=b"wrong"))
    assert isinstance(check(admission, head()), Admitted)


# Hosts that name no service.


def by_model(*claims: ServiceKey) -> Admission:
    known = catalog(by_model=True, models={"model": claims})
    made = Admission(known)
    made.engine_headers = EngineHeaders(b"k" * 43)
    return made


ADDRESS = b"10.96.0.1:8080"


def test_a_model_names_the_service_and_its_key_is_known_before_the_body():
    admission = by_model(CHAT)
    admitted = check(admission, head(ADDRESS))
    assert admitted.config is None
    assert admitted.owner.keyed
    named = admission.check_model(admitted, "model", 0.0, 1e9)
    assert (named.config.key, named.tenant) == (CHAT, "acme")
    assert code(admission.check_model(admitted, "other", 0.0, 1e9)) == (404, "model_not_found")


@pytest.mark.parametrize("key", [b"", b"wrong"])
def test_a_wrong_key_is_refused_before_a_body_that_would_name_the_service(key):
    assert code(check(by_model(CHAT), head(ADDRESS, key=key))) == (401, "invalid_api_key")


def test_with_a_service_without_keys_a_body_is_read_for_the_part_of_those():
    known = catalog(by_model=True, models={"model": (CHAT,), "open-model": (OPEN,)})
    admission = Admission(known)
    admission.engine_headers = EngineHeaders(b"k" * 43)
    admitted = check(admission, head(ADDRESS, key=b"wrong"))
    assert (admitted.config, admitted.owner.keyed) == (None, False)
    assert admission.check_model(admitted, "open-model", 0.0, 1e9).config.key == OPEN
    assert code(admission.check_model(admitted, "model", 0.0, 1e9))[0] == 401


def test_a_key_is_hashed_once_before_a_body_however_many_services_there_are(monkeypatch):
    """It was hashed and looked up at each service: 30 ms at 1,000 of them."""
    services, secrets, models = {}, {}, {}
    for number in range(1000):
        key = ServiceKey("a", f"s{number}")
        services[key] = ServiceConfig(key, "u", f"m{number}", api_keys_secret=f"keys-{number}")
        secrets[ObjectKey("a", f"keys-{number}")] = secret(acme=f"right {number}") | {"bad": b"x"}
        models[f"m{number}"] = (key,)
    known = Catalog(Hosts(by_model=True))
    known.update(services=services, secrets=secrets, models=models, complete=True)
    admission = Admission(known)
    check(admission, head(ADDRESS, key=b"wrong"))
    hashed, real = [], hashlib.sha256
    monkeypatch.setattr(tenant_keys.hashlib, "sha256", lambda data: hashed.append(data) or real(data))
    known.model_services = None
    assert code(check(admission, head(ADDRESS, key=b"wrong")))[0] == 401
    assert len(hashed) == 1


def test_paths_without_a_body_need_the_address_of_their_service():
    version = head(ADDRESS, path=b"/version", method=b"GET", length=0)
    assert code(check(by_model(CHAT), version)) == (404, "service_not_found")
    assert isinstance(check(by_model(CHAT), head(ADDRESS, path=b"/tokenize")), Admitted)
    assert code(check(by_model(CHAT), head(ADDRESS, path=b"/tokenize", key=b"wrong")))[0] == 401
    assert isinstance(check(by_model(CHAT), head(ADDRESS, path=b"/v1/models", method=b"GET")), Admitted)
