"""Signed admin calls and the port that they have: who is let in, and that the answer proves who gave it."""

import hashlib
import hmac
import time

import pytest

TOKEN = b"secret"
POD = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(autouse=True)
def _pod(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN.decode())
    monkeypatch.setenv("INFLIGHT_POD_UID", POD)


def sign(body, *, token=TOKEN, method="PATCH", path="/v1/runtime_config", pod=POD, age=0, signed_pod=None):
    """The header, and the proof that the answer has to carry. Made here from the protocol's text, not by its code."""
    seconds = str(int(time.time() - age))
    lines = (method, path, signed_pod or pod, seconds, hashlib.sha256(body).hexdigest())
    signature = hmac.new(token, "\n".join(lines).encode(), "sha256").hexdigest()
    header = f"Inflight-HMAC-SHA256 pod={pod},time={seconds},signature={signature}"
    return header, hmac.new(token, f"proof\n{signature}".encode(), "sha256").hexdigest()


async def send(fake, body, authorization, method="PATCH", path="/v1/runtime_config"):
    headers = {"authorization": authorization, "content-type": "application/json"}
    return await fake.admin.request(method, path, content=body, headers=headers)


BODY = b'{"max_num_seqs": 2, "revision": 7}'


async def test_signed_call_is_taken_and_its_answer_proves_the_pod(make_fake):
    fake = await make_fake()
    header, proof = sign(BODY)
    answer = await send(fake, BODY, header)
    assert (answer.status_code, answer.headers["inflight-proof"]) == (200, proof)
    assert fake.service.session.runtime.revision == 7
    header, proof = sign(b"", method="POST", path="/admin/drain")
    answer = await send(fake, b"", header, "POST", "/admin/drain")
    assert (answer.status_code, answer.headers["inflight-proof"]) == (202, proof)


@pytest.mark.parametrize(
    ("body", "status"), [(b'{"max_num_seqs": 99}', 400), (b"{", 400), (b'{"revision": 3}', 409), (b'{"x": 1}', 400)]
)
async def test_refusal_of_a_signed_call_proves_the_pod_too(make_fake, body, status):
    fake = await make_fake()
    header, _ = sign(BODY)
    assert (await send(fake, BODY, header)).status_code == 200
    header, proof = sign(body)
    answer = await send(fake, body, header)
    assert (answer.status_code, answer.headers["inflight-proof"]) == (status, proof)
    assert "error" in answer.json()


@pytest.mark.parametrize(
    "changes",
    [
        {"token": b"other"},
        {"method": "POST"},
        {"path": "/admin/drain"},
        {"age": 400},
        {"age": -400},
        {"signed_pod": "other"},
    ],
)
async def test_wrong_signature_is_401_without_proof(make_fake, changes):
    fake = await make_fake()
    answer = await send(fake, BODY, sign(BODY, **changes)[0])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_signature")
    assert "inflight-proof" not in answer.headers
    assert not fake.engine.configurations


async def test_another_body_is_401(make_fake):
    fake = await make_fake()
    assert (await send(fake, BODY + b" ", sign(BODY)[0])).status_code == 401


async def test_call_for_another_pod_is_421_even_if_it_is_well_signed(make_fake):
    fake = await make_fake()
    answer = await send(fake, BODY, sign(BODY, pod="other-pod")[0])
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "other_pod")
    assert "inflight-proof" not in answer.headers
    assert not fake.engine.configurations


@pytest.mark.parametrize("uid", ["", None])
async def test_engine_that_does_not_know_its_pod_takes_no_signed_calls(make_fake, monkeypatch, uid):
    if uid is None:
        monkeypatch.delenv("INFLIGHT_POD_UID")
    else:
        monkeypatch.setenv("INFLIGHT_POD_UID", uid)
    fake = await make_fake()
    answer = await send(fake, BODY, sign(BODY)[0])
    assert (answer.status_code, "INFLIGHT_POD_UID" in answer.json()["error"]["message"]) == (401, True)


@pytest.mark.parametrize(
    "parameters",
    [
        "",
        "pod=",
        f"pod={POD},time=1",
        f"pod={POD},time=-1,signature={'0' * 64}",
        f"pod={POD},time=²,signature={'0' * 64}",
        f"pod={POD},time={'9' * 99},signature={'0' * 64}",
        f"pod={POD},time=1,signature={'é' * 64}",
        f"pod={POD},time=1,signature={'0' * 64},more=1",
    ],
)
async def test_malformed_credentials_are_401(make_fake, parameters):
    fake = await make_fake()
    answer = await send(fake, BODY, f"Inflight-HMAC-SHA256 {parameters}".encode("latin-1"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_signature")


async def test_without_a_token_signed_calls_are_off(make_fake, monkeypatch):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    fake = await make_fake()
    assert (await send(fake, BODY, sign(BODY, token=b"")[0])).status_code == 403


BEARER = {"authorization": "Bearer secret"}


async def test_with_an_admin_port_the_serving_port_names_it_and_takes_no_admin_calls(make_fake):
    fake = await make_fake(admin_port=8001)
    for method, path in (("PATCH", "/v1/runtime_config"), ("POST", "/admin/drain"), ("GET", "/admin/record")):
        answer = await fake.http.request(method, path, headers=BEARER)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "admin_port")
        assert "port 8001" in answer.json()["error"]["message"]
    assert not fake.app.state.drains
    for path in ("/v1/runtime_config", "/health", "/ready", "/metrics"):
        assert (await fake.http.get(path)).status_code == 200
        assert (await fake.admin.get(path)).status_code == 200
    answer = await fake.admin.patch("/v1/runtime_config", json={"max_num_seqs": 2}, headers=BEARER)
    assert (answer.status_code, "inflight-proof" in answer.headers) == (200, False)
    assert (await fake.admin.get("/admin/record", headers=BEARER)).json()["error"]["code"] == "not_recording"
    assert (await fake.admin.post("/admin/drain", headers=BEARER)).status_code == 202
    assert fake.app.state.drains


async def test_admin_port_serves_no_models(make_fake):
    fake = await make_fake(admin_port=8001)
    assert (await fake.admin.get("/v1/models")).status_code == 404
    assert (await fake.admin.post("/v1/completions", json={"prompt": "a"})).status_code == 404


async def test_metrics_can_be_on_the_admin_port_only(make_fake):
    fake = await make_fake(admin_port=8001, serving_metrics=False)
    answer = await fake.http.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "admin_port")
    assert (await fake.admin.get("/metrics")).status_code == 200
