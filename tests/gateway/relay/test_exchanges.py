"""The ways of requests by their heads, over a relay's socket."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest

from inflight_base.manifest.keys import ObjectKey
from inflight_base.signing import tenant_key
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.link.wire import Ask, Keys, Known, frame
from inflight_gateway.relay.intake.bodies import MAX_OTHER_BYTES
from inflight_gateway.request.error_body import is_anthropic
from inflight_gateway.request.paths import PATHS
from tests.gateway.relay.conftest import QUICK, eventually
from tests.gateway.relay.fake_engine import Do
from tests.gateway.relay.fake_picker import KEY
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

NAME, OTHERS_NAME = b"right", b"also right"


def secret() -> dict[str, bytes]:
    return {
        name: json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key).hexdigest()}).encode()
        for name, tenant, key in (("k1", "acme", NAME), ("k2", "other", OTHERS_NAME))
    }


def tell(relay, *messages) -> None:
    for writer in relay.picker._writers:
        writer.write(frame(messages))


@pytest.fixture
async def keyed(make):
    """A relay of a service with keys."""
    relay = await make()
    tell(relay, Known(secrets=((ObjectKey("ns", "keys"), secret()),)))
    await relay.configure(api_keys_secret="keys")
    return relay


def bearer(key: bytes = NAME) -> dict[str, str]:
    return {"authorization": f"Bearer {key.decode()}"}


async def get(relay, path, method="GET", host="svc.ns", **headers):
    async with relay.session.request(method, f"http://{host}{path}", headers=headers) as response:
        return response.status, dict(response.headers), await response.read()


def code(body: bytes) -> str:
    return json.loads(body)["error"]["code"]


# Answers of the gateway itself.


async def test_models_and_health_are_answered_without_an_engine_or_the_picker(relay):
    status, headers, body = await get(relay, "/v1/models")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    model = {"id": "m", "object": "model", "created": 0, "owned_by": "inflight"}
    assert json.loads(body) == {"object": "list", "data": [model]}
    assert json.loads((await get(relay, "/v1/models/m"))[2]) == model
    status, _, body = await get(relay, "/v1/models/other")
    assert (status, code(body)) == (404, "model_not_found")
    assert (await get(relay, "/health"))[0] == 200
    assert (await get(relay, "/v1/models", "HEAD"))[::2] == (200, b"")
    assert relay.engine.seen == []
    assert [message for message in relay.picker.told if isinstance(message, Ask)] == []


@pytest.mark.parametrize("name", ["owner/name", "owner%2Fname"])
async def test_a_model_whose_name_has_a_slash_is_found(relay, name):
    await relay.configure(model="owner/name")
    status, _, body = await get(relay, f"/v1/models/{name}")
    assert (status, json.loads(body)["id"]) == (200, "owner/name")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/health", "/favicon.ico", "/version", "/tokenize"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_generating_paths_are_asked_for_at_the_picker(relay, path, method):
    """Others were held, woke engines and kept them awake."""
    relay.script(Do(status=200, body=b"{}"))
    await get(relay, path, method)
    await get(relay, path, method, host="gone.ns")
    assert [message for message in relay.picker.told if isinstance(message, Ask)] == []


async def test_models_need_the_key_of_their_service_and_health_needs_none(keyed):
    assert (await get(keyed, "/v1/models"))[0] == 401
    assert (await get(keyed, "/v1/models", **bearer()))[0] == 200
    assert [(await get(keyed, path))[0] for path in ("/health", "/ping")] == [200, 200]


# Heads that are refused.


async def test_a_request_of_an_unknown_host_is_refused_before_its_body(relay):
    """A dozen of them with 32 MiB took the picker's memory."""
    for path in ("/v1/chat/completions", "/tokenize", "/v1/files"):
        reader, writer = await asyncio.open_unix_connection(str(relay.socket))
        writer.write(b"POST %b HTTP/1.1\r\nhost: gone.ns\r\ncontent-length: 33000000\r\n\r\n" % path.encode())
        assert (await asyncio.wait_for(reader.readline(), 1)).startswith(b"HTTP/1.1 404 ")
        writer.close()
    assert relay.shared.bodies.kept == 0
    await eventually(lambda: len(relay.reports) == 3)
    assert {(report["status"], report["path"]) for report in relay.reports} >= {(404, "/tokenize")}
    assert {tuple(report["service"]) for report in relay.reports} == {("", "")}


async def test_wrong_keys_are_refused_here_and_reported(keyed):
    status, headers, body = await keyed.post(STREAM, headers=bearer(b"wrong"))
    assert (status, code(body), headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    report = await keyed.report()
    assert (report["service"], report["status"], report["error"]) == (["ns", "svc"], 401, "invalid_api_key")
    assert keyed.engine.seen == []
    assert keyed.picker.asked == []


# Hosts that name no service.

MODEL_PATHS = ["/tokenize", "/detokenize", "/v1/messages/count_tokens"]


@pytest.fixture
async def by_model(relay):
    """The service is found by its model."""
    tell(relay, Known(models=(("m", (KEY,)),), hosts=Hosts(by_model=True)))
    await eventually(lambda: relay.shared.catalog.hosts.by_model)
    return relay


async def post_by_model(relay, path, data):
    async with relay.session.post(f"http://10.96.0.1{path}", data=data) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize("path", sorted(path for path, known in PATHS.items() if "POST" in known.methods))
@pytest.mark.parametrize("body", [b"{}", b'{"model":""}', b'{"model":null}', b'{"model":7}', b'{"mode":"m"}'])
async def test_a_body_that_must_name_its_service_and_does_not_is_400(by_model, path, body):
    status, said = await post_by_model(by_model, path, body)
    error = json.loads(said)["error"]
    assert (status, error["code"], error["message"].split(":")[0]) == (400, "model_missing", "model")
    assert is_anthropic(path) or error["param"] == "model"
    assert by_model.engine.seen == []
    assert by_model.shared.bodies.kept == 0


@pytest.mark.parametrize("path", MODEL_PATHS)
@pytest.mark.parametrize("chunked", [True, False])
async def test_the_model_names_the_service_also_where_nothing_is_generated(by_model, path, chunked):
    body = json.dumps({"prompt": "x" * 300_000, "model": "m"}).encode()

    async def parts():
        for begin in range(0, len(body), 50_000):
            yield body[begin : begin + 50_000]

    by_model.script(Do(status=200, body=b"tokens"))
    assert await post_by_model(by_model, path, parts() if chunked else body) == (200, b"tokens")
    seen = by_model.engine.seen[0]
    assert (seen.target, seen.body, seen.headers["host"]) == (path, body, "10.96.0.1")
    report = await by_model.report()
    assert (report["service"], report["status"], report["path"]) == (["ns", "svc"], 200, path)
    assert by_model.picker.asked == []
    await eventually(lambda: by_model.shared.bodies.kept == 0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (400, "unreadable_body")),
        (b"", (400, "unreadable_body")),
        (b'{"model":"gone"}', (404, "model_not_found")),
        (b'{"model":"m","prompt":"' + b"x" * 2**20 + b'"}', (413, "request_too_large")),
    ],
)
async def test_a_body_that_names_no_service_reaches_no_engine(by_model, body, expected):
    status, said = await post_by_model(by_model, "/tokenize", body)
    assert (status, code(said)) == expected
    assert by_model.engine.seen == []
    assert by_model.shared.bodies.kept == 0


async def test_a_client_that_leaves_before_its_body_named_a_service_leaves_nothing(by_model):
    _, writer = await asyncio.open_unix_connection(str(by_model.socket))
    writer.write(b"POST /tokenize HTTP/1.1\r\nhost: 10.96.0.1\r\ncontent-length: 99999\r\n\r\n" + b"x" * 9999)
    await eventually(lambda: by_model.shared.bodies.kept == 9999)
    writer.transport.abort()
    await eventually(lambda: by_model.shared.bodies.kept == 0)


# Keys and errors of Anthropic's clients.


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"x-api-key": "right"}, "acme"),
        ({"x-api-key": "also right", "authorization": "Bearer right"}, "acme"),
        ({"x-api-key": "right", "authorization": "Bearer "}, "acme"),
        ({"x-api-key": "right", "authorization": ""}, "acme"),
        ({"x-api-key": "right", "authorization": "Basic x"}, "acme"),
        ({"x-api-key": "right", "api-key": ""}, "acme"),
        ({"x-api-key": "right", "authorization": "Bearer wrong"}, None),
        ({"x-api-key": "", "authorization": "Bearer"}, None),
        ({"x-api-key": "wrong"}, None),
        ({}, None),
    ],
)
async def test_the_first_key_that_is_not_empty_counts_and_no_engine_gets_any(keyed, headers, tenant):
    asked = {"model": "m", "max_tokens": 7, "messages": []}
    async with keyed.session.post("http://svc.ns/v1/messages?beta=true", json=asked, headers=headers) as answer:
        body = await answer.json()
        assert answer.status == (401 if tenant is None else 200)
    if tenant is None:
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
        assert keyed.engine.seen == []
        return
    assert keyed.picker.asked[0].tenant == tenant
    assert not {"authorization", "api-key", "x-api-key"} & {*keyed.engine.seen[0].headers}


@pytest.mark.parametrize(
    ("do", "status", "kind"),
    [
        (Do(refuse=429, headers=(("retry-after", "7"),)), 429, "rate_limit_error"),
        (Do(refuse=503, headers=(("retry-after", "7"),)), 503, "overloaded_error"),
        (Do(refuse=504), 504, "timeout_error"),
        (Do(no_head=True), 502, "api_error"),
    ],
)
async def test_errors_at_anthropics_paths_have_its_form_and_say_when_to_come_again(keyed, do, status, kind):
    keyed.script(do)
    asked = {"model": "m", "max_tokens": 7, "messages": []}
    found, headers, body = await keyed.post(asked, "/v1/messages", headers=bearer())
    said = json.loads(body)
    assert (found, said["type"], said["error"]["type"]) == (status, "error", kind)
    assert headers.get("retry-after") == dict(do.headers).get("retry-after")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("HEAD", "/v1/messages", 405, None),
        ("OPTIONS", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens/", 404, "not_found_error"),
    ],
)
async def test_other_methods_and_spellings_are_refused_by_the_head(keyed, method, path, status, kind):
    found, headers, body = await get(keyed, path, method)
    assert found == status
    assert status == 404 or headers["Allow"] == "POST"
    assert (json.loads(body)["error"]["type"] if kind else body) == (kind or b"")


# What engines get.


async def test_an_engine_gets_the_signed_tenant_and_no_credentials(keyed):
    forged = {"x-inflight-tenant": "boss", "x-inflight-signature": "v2=x", "x-inflight-jwt-tenant": "boss"}
    status, _, body = await keyed.post(
        STREAM, headers={**bearer(), **forged, "api-key": "mine", "x-request-id": "id-1"}
    )
    assert status == 200
    assert same(body, STREAM)
    sent = keyed.engine.seen[0].headers
    assert (sent["x-inflight-tenant"], sent["x-request-id"], sent["x-inflight-progress"]) == ("acme", "id-1", "1")
    assert tenant_key(b"k" * 32, KEY, keyed.picker.config.uid)
    assert not {"authorization", "api-key", "x-inflight-jwt-tenant"} & set(sent)
    assert keyed.picker.asked[0].tenant == "acme"
    report = await keyed.report()
    assert (report["tenant"], report["key_id"], report["path"]) == ("acme", "k1", "/v1/chat/completions")


async def test_a_request_that_waited_while_the_gateway_key_went_reaches_no_engine_unsigned(keyed):
    pick = keyed.picker._pick

    def pick_later(ask):
        tell(keyed, Keys(None))
        return pick(ask)

    keyed.picker._pick = pick_later
    status, _, body = await keyed.post(STREAM, headers=bearer())
    assert (status, keyed.engine.seen) == (503, [])
    assert (await keyed.report())["error"] == code(body)


async def test_services_without_keys_leave_credentials_to_their_engines(relay):
    await relay.post(STREAM, headers=bearer())
    assert relay.engine.seen[0].headers["authorization"] == "Bearer right"
    assert "x-inflight-tenant" not in relay.engine.seen[0].headers


async def test_a_changed_gateway_key_signs_the_next_request_and_no_key_is_503(keyed):
    tell(keyed, Keys(None))
    await eventually(lambda: keyed.shared.admission.engine_headers.refusal(keyed.picker.config) is not None)
    status, _, _ = await keyed.post(STREAM, headers=bearer())
    assert status == 503
    tell(keyed, Keys(b"n" * 32, b"k" * 32))
    await eventually(lambda: keyed.shared.admission.engine_headers.refusal(keyed.picker.config) is None)
    assert (await keyed.post(STREAM, headers=bearer()))[0] == 200


async def test_the_picker_gets_what_a_pick_depends_on(relay):
    asked = {**WHOLE, "n": 2, "class": "batch", "priority": 3, "max_tokens": 7}
    await relay.post(asked, headers={"x-request-id": "mine"})
    (ask,) = relay.picker.asked
    assert (ask.service, ask.attempt, ask.path, ask.external_id) == (KEY, 1, "/v1/chat/completions", "mine")
    assert (ask.body.choices, ask.body.service_class, ask.body.priority, ask.body.max_tokens) == (2, "batch", 3, 7)
    assert ask.body_bytes > 0


# Bodies.


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"model": "\xff"}', b"[" * 100_000, b'\xef\xbb\xbf{"a":1}', '{"a":1}'.encode("utf-16")],
    ids=["empty", "list", "cut", "no UTF-8", "deep", "byte order mark", "UTF-16"],
)
async def test_a_body_that_the_gateway_cannot_read_reaches_no_engine(relay, data):
    """Engines read some of them, at 0 tokens against all limits."""
    async with relay.session.post("http://svc.ns/v1/completions", data=data) as response:
        assert (response.status, code(await response.read())) == (400, "unreadable_body")
    assert relay.engine.seen == []
    assert relay.picker.asked == []


async def test_a_client_may_not_forge_a_continuation(relay):
    status, _, body = await relay.post({**STREAM, "inflight_continuation": {"choices": [], "created": 1}})
    assert (status, code(body)) == (400, "unsupported_parameter")


async def test_one_key_does_not_fill_the_memory_of_others(make):
    relay = await make(replace(QUICK, max_bodies_bytes=1))
    tell(relay, Known(secrets=((ObjectKey("ns", "keys"), secret()),)))
    await relay.configure(api_keys_secret="keys")
    slow = []
    head = b"POST /v1/completions HTTP/1.1\r\nhost: svc.ns\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
    size = 20 * 2**20
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(str(relay.socket))
        writer.write(head % (NAME, size) + bytes(size - 1))
        slow.append((reader, writer))
    reading = [asyncio.create_task(reader.read(12)) for reader, _ in slow]
    done, left = await asyncio.wait(reading, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [b"HTTP/1.1 503"]
    status, _, _ = await relay.post(STREAM, headers=bearer(OTHERS_NAME))
    assert status == 200
    for task in left:
        task.cancel()
    for _, writer in slow:
        writer.close()
    await eventually(lambda: relay.shared.bodies.kept == 0)


# Paths that engines answer, but generate nothing for.


async def test_other_paths_go_to_the_engine_with_the_fewest_requests_and_are_reported(keyed):
    keyed.script(Do(hang=0), Do(status=200, body=b'{"tokens":[1]}'))
    task = asyncio.create_task(keyed.post(STREAM, headers=bearer()))
    await eventually(lambda: len(keyed.engine.seen) == 1)
    busy = keyed.engine.seen[0].address
    for _ in range(5):
        status, _, body = await keyed.post({"prompt": "a"}, "/tokenize", headers=bearer())
        assert (status, body) == (200, b'{"tokens":[1]}')
    assert busy not in {seen.address for seen in keyed.engine.seen[1:]}
    sent = keyed.engine.seen[1].headers
    assert sent["x-inflight-tenant"] == "acme"
    assert not {"authorization", "x-inflight-progress"} & set(sent)
    task.cancel()
    await eventually(lambda: len([report for report in keyed.reports if report["path"] == "/tokenize"]) == 5)
    reports = [report for report in keyed.reports if report["path"] == "/tokenize"]
    assert reports[0]["tenant"] == "acme"
    assert reports[0]["completion_tokens"] == reports[0]["prompt_tokens"] == 0


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_on_other_paths_are_counted_and_at_most_one_mebibyte(relay, chunked):
    relay.script(Do(status=200, body=b"{}"))

    async def parts():
        for _ in range(20):
            yield bytes(MAX_OTHER_BYTES // 10)

    data = parts() if chunked else bytes(2 * MAX_OTHER_BYTES)
    async with relay.session.post("http://svc.ns/tokenize", data=data) as response:
        assert (response.status, code(await response.read())) == (413, "request_too_large")
    await eventually(lambda: relay.shared.bodies.kept == 0)
    async with relay.session.post("http://svc.ns/tokenize", data=bytes(MAX_OTHER_BYTES)) as response:
        assert response.status == 200
    assert relay.shared.bodies.kept == 0
    await eventually(lambda: [report["status"] for report in relay.reports] == [413, 200])


async def test_without_a_ready_engine_other_paths_are_503_at_once(relay):
    tell(relay, Known(endpoints=((KEY, ()),)))
    await eventually(lambda: not relay.shared.catalog.endpoints)
    status, headers, body = await relay.post({}, "/tokenize")
    assert (status, code(body), headers["retry-after"]) == (503, "no_replica", "5")


async def test_a_report_of_a_refused_request_keeps_only_the_beginning_of_its_path(relay):
    assert (await get(relay, "/" + 5000 * "x"))[0] == 404
    assert len((await relay.report())["path"]) == 256
