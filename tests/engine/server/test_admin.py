"""Live limits and draining: who may change what, and that a refused change changes nothing."""

import asyncio
import os

import pytest

from inflight_contract.limits import initial_limits
from inflight_engine.messages import Configured
from inflight_engine.server.engine import calls as engine_calls
from inflight_engine.server.engine.phase import Phase
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import Limits, LimitsInForce
from inflight_settings.scheduling import ServiceClass
from tests.engine.server.fake_engine import CAPACITY, until

TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture(autouse=True)
def _token(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")


async def patch(fake, headers=TOKEN, **change):
    return await fake.http.patch("/v1/runtime_config", json=change, headers=headers)


async def test_patch_answers_with_what_the_engine_has_put_in_force(make_fake):
    fake = await make_fake()
    answer = await patch(fake, max_num_seqs=2, revision=7)
    assert answer.status_code == 200
    assert answer.json() == {
        "state": "awake",
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "revision": 7,
        "capacity": {"max_num_seqs": 4, "max_num_batched_tokens": 64},
        "kv_cache": {"bytes_per_token": 128, "num_blocks": 32, "block_size": 16, "largest_batch_tokens": 512},
        "scheduling": {
            "policy": "fcfs",
            "ttft_target": None,
            "ttft_per_1k_tokens": 0.0,
            "late_share": 0.05,
            "shed_after": None,
            "preemption": "auto",
            "preemption_victim": "last_arrived",
            "prefix_caching": True,
            "classes": [
                {
                    "name": "default",
                    "weight": 1.0,
                    "priority": 0,
                    "ttft_target": None,
                    "tpot_target": None,
                    "max_queued_requests": None,
                    "shed_after": None,
                    "request_timeout": None,
                }
            ],
        },
        "default_sampling_params": {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": None,
        },
    }
    assert fake.engine.configurations == [(LimitsInForce(Limits(2, 64), 7), {})]
    assert (await fake.http.get("/v1/runtime_config")).json() == answer.json()
    text = (await fake.http.get("/metrics")).text
    assert 'inflight_max_num_seqs{model_name="fake"} 2.0' in text
    assert 'inflight_runtime_config_revision{model_name="fake"} 7.0' in text


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"max_num_seqs": 5}, 400, "max_num_seqs"),
        ({"max_num_seqs": 0}, 400, "max_num_seqs"),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 65}, 400, "max_num_batched_tokens"),
        ({"max_num_seqs": 2, "max_num_batched_tokens": -1}, 400, "max_num_batched_tokens"),
        ({"max_num_seqs": "2"}, 400, "max_num_seqs"),
        ({"max_num_seqs": 2**70}, 400, "max_num_seqs"),
        ({"max_num_seqs": 2, "policy": "sjf"}, 400, "policy"),
        ({"max_num_seqs": 2, "revision": 2**63}, 400, "revision"),
        ({"max_num_seqs": 2, "revision": 4}, 409, "revision"),
    ],
)
async def test_refused_change_changes_nothing(make_fake, change, status, param):
    fake = await make_fake()
    assert (await patch(fake, revision=5)).status_code == 200
    before = (await fake.http.get("/v1/runtime_config")).json()
    answer = await patch(fake, **change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert (await fake.http.get("/v1/runtime_config")).json() == before
    assert len(fake.engine.configurations) == 1


async def test_change_after_the_engine_died_is_503_at_once(make_fake):
    fake = await make_fake()
    fake.engine.die()
    await until(lambda: fake.service.session.phase is Phase.RESTARTING)
    answer = await asyncio.wait_for(patch(fake, max_num_seqs=2), 20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}])
async def test_wrong_or_missing_token_is_401(make_fake, headers):
    fake = await make_fake()
    for answer in (await patch(fake, headers, max_num_seqs=2), await fake.http.post("/admin/drain", headers=headers)):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert not fake.engine.configurations
    assert not fake.app.state.drains


async def test_token_is_checked_before_the_body(make_fake):
    fake = await make_fake()
    broken = {"content": "{", "headers": {"content-type": "application/json"}}
    answer = await fake.http.patch("/v1/runtime_config", **broken)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_admin_token")
    broken["headers"] |= TOKEN
    assert (await fake.http.patch("/v1/runtime_config", **broken)).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"authorization": f"Inflight-HMAC-SHA256 pod=other,time=1,signature={64 * '0'}"}, 421)],
)
async def test_a_call_without_right_credentials_is_refused_before_its_body_is_read(
    make_fake, monkeypatch, headers, status
):
    monkeypatch.setenv("INFLIGHT_POD_UID", "own")
    fake, read = await make_fake(), []

    async def body():
        for _ in range(3):
            read.append(1)
            yield b"{}"

    answer = await fake.http.patch("/v1/runtime_config", content=body(), headers=headers)
    assert answer.status_code == status
    assert not read


CLASSES = EngineConfig("fake", classes=(ServiceClass("a", 4.0), ServiceClass("b"), ServiceClass("c")))


def weights(answer):
    return {one["name"]: one["weight"] for one in answer.json()["scheduling"]["classes"]}


async def test_class_weights_change_alone_or_with_limits_and_the_answer_is_what_is_in_force(make_fake):
    fake = await make_fake(engine=CLASSES)
    assert weights(await fake.http.get("/v1/runtime_config")) == {"a": 4.0, "b": 1.0, "c": 1.0}
    assert weights(await patch(fake, class_weights={"b": 2})) == {"a": 4.0, "b": 2.0, "c": 1.0}
    assert fake.engine.configurations == [(LimitsInForce(CAPACITY), {"b": 2.0})]
    both = await patch(fake, class_weights={"a": 0.5, "c": 8}, max_num_seqs=2, revision=1)
    assert (both.json()["max_num_seqs"], weights(both)) == (2, {"a": 0.5, "b": 2.0, "c": 8.0})
    assert fake.engine.configurations[1:] == [(LimitsInForce(Limits(2, 64), 1), {"a": 0.5, "c": 8.0})]
    assert weights(await fake.http.get("/v1/runtime_config")) == weights(both)
    assert weights(await patch(fake, class_weights={"c": 8})) == weights(both)
    assert len(fake.engine.configurations) == 2


async def test_change_that_the_engine_does_not_answer_is_504_and_once_it_does_all_of_it_is_shown(
    make_fake, monkeypatch
):
    monkeypatch.setattr(engine_calls, "ANSWER_SECONDS", 0.05)
    fake = await make_fake(engine=CLASSES)
    before = (await fake.http.get("/v1/runtime_config")).json()
    fake.engine.answering = False
    assert (await patch(fake, class_weights={"a": 2}, max_num_seqs=2)).status_code == 504
    assert (await fake.http.get("/v1/runtime_config")).json() == before
    ((limits, _),) = fake.engine.configurations
    fake.engine.send(Configured(0, limits, fake.engine.weights))
    await until(lambda: fake.service.session.runtime.limits == limits.limits)
    after = await fake.http.get("/v1/runtime_config")
    assert (after.json()["max_num_seqs"], weights(after)) == (2, {"a": 2.0, "b": 1.0, "c": 1.0})


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"class_weights": {"d": 1}}, 400, "class_weights"),
        ({"class_weights": {"a": 0}}, 400, "class_weights.a"),
        ({"class_weights": {"a": -1}}, 400, "class_weights.a"),
        ({"class_weights": {"a": "2"}}, 400, "class_weights.a"),
        ({"class_weights": {"a": True}}, 400, "class_weights.a"),
        ({"class_weights": {"a": 1e7}}, 400, "class_weights.a"),
        ({"class_weights": [1]}, 400, "class_weights"),
        ({"class_weights": {"a": 2}, "max_num_seqs": 5}, 400, "max_num_seqs"),
        ({"class_weights": {"a": 2}, "revision": 4}, 409, "revision"),
    ],
)
async def test_refused_weights_change_nothing_not_even_the_limits(make_fake, change, status, param):
    fake = await make_fake(engine=CLASSES)
    before = (await patch(fake, revision=5)).json()
    answer = await patch(fake, **{"max_num_seqs": 2, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert (await fake.http.get("/v1/runtime_config")).json() == before
    assert len(fake.engine.configurations) == 1


async def test_weight_that_is_no_number_of_json_is_refused(make_fake):
    fake = await make_fake(engine=CLASSES)
    for number in ("NaN", "Infinity", "1e999"):
        answer = await fake.http.patch(
            "/v1/runtime_config",
            content=f'{{"class_weights": {{"a": {number}}}}}',
            headers={**TOKEN, "content-type": "application/json"},
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "class_weights.a")
    assert not fake.engine.configurations


async def test_without_a_configured_token_admin_calls_are_off(make_fake, monkeypatch):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    fake = await make_fake()
    answer = await patch(fake, {"authorization": "Bearer "}, max_num_seqs=2)
    assert answer.status_code == 403
    assert "INFLIGHT_ADMIN_TOKEN" in answer.json()["error"]["message"]
    assert not fake.engine.configurations


async def test_token_file_is_read_afresh_so_that_rotation_works(make_fake, monkeypatch, tmp_path):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    fake = await make_fake()
    assert (await patch(fake)).status_code == 403
    (tmp_path / "token").write_text("secret\n")
    assert (await patch(fake)).status_code == 200
    (tmp_path / "token").write_text("other\n")
    assert (await patch(fake)).status_code == 401


@pytest.mark.parametrize(
    ("token", "sent"), [(b"\xff\xfesecret", b"secret"), (b"secret", b"\xff\xfe"), (b"\xc3\xa9", b"\xe9")]
)
async def test_token_that_is_not_text_is_a_wrong_one(make_fake, monkeypatch, tmp_path, token, sent):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    (tmp_path / "token").write_bytes(token)
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    fake = await make_fake()
    answer = await patch(fake, {b"authorization": b"Bearer " + sent})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_admin_token")
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", os.fsdecode(token))
    assert (await patch(fake, {b"authorization": b"Bearer " + sent})).status_code == 401


@pytest.mark.parametrize("token", ["à", "密钥"])
async def test_token_may_hold_any_characters(make_fake, monkeypatch, tmp_path, token):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", token)
    fake = await make_fake()
    headers = {b"authorization": b"Bearer " + token.encode()}
    assert (await patch(fake, headers)).status_code == 200
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    (tmp_path / "token").write_text(f"{token}\n", encoding="utf-8")
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    assert (await patch(fake, headers)).status_code == 200


async def test_drain_call_begins_the_drain(make_fake):
    fake = await make_fake()
    assert (await fake.http.post("/admin/drain", headers=TOKEN)).status_code == 202
    assert fake.app.state.drains


async def test_while_draining_connections_close_and_ready_fails(make_fake):
    fake = await make_fake()
    assert "connection" not in (await fake.http.get("/ready")).headers
    fake.service.draining = True
    ready = await fake.http.get("/ready")
    assert (ready.status_code, ready.headers["connection"], ready.json()["status"]) == (503, "close", "draining")
    assert (await fake.http.get("/health")).status_code == 200
    fake.service.registry.admitting = False
    answer = await fake.post("/v1/completions", prompt="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"


LARGE = Limits(8, 512)
AT_CAPACITY = LimitsInForce(LARGE)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"max_num_seqs": 4, "max_num_batched_tokens": 64, "revision": 9}', LimitsInForce(Limits(4, 64), 9)),
        ('{"max_num_seqs": 99}', AT_CAPACITY),
        ("{}", AT_CAPACITY),
        ('{"max_num_seqs": 0}', AT_CAPACITY),
        ('{"max_num_seqs": 4, "other": 1}', AT_CAPACITY),
        ("max_num_seqs: 4", AT_CAPACITY),
        ("", AT_CAPACITY),
    ],
)
def test_limits_file_is_clamped_and_a_malformed_one_is_only_a_warning(tmp_path, caplog, content, expected):
    path = tmp_path / "limits.json"
    path.write_text(content)
    assert initial_limits(path, LARGE) == expected
    malformed = expected == AT_CAPACITY and content != "{}" and "99" not in content
    assert ("malformed" in caplog.text) == malformed


def test_limits_file_need_not_exist(tmp_path, caplog):
    assert initial_limits(tmp_path / "none", LARGE) == AT_CAPACITY
    assert initial_limits(None, LARGE) == AT_CAPACITY
    assert not caplog.records
