"""Live limits and draining: who may change what, and that a refused change changes nothing."""

import asyncio

import pytest

from inflight_engine.scheduling.limits import Limits
from inflight_engine.server.limits_file import initial_limits

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
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "revision": 7,
        "capacity": {"max_num_seqs": 4, "max_num_batched_tokens": 64},
        "kv_cache": {"bytes_per_token": 128, "num_blocks": 32, "block_size": 16, "largest_batch_tokens": 512},
        "scheduling": {
            "policy": "fcfs",
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
                }
            ],
        },
    }
    assert fake.engine.limits == [Limits(2, 64, 7)]
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
    assert len(fake.engine.limits) == 1


async def test_change_after_the_engine_died_is_503_at_once(make_fake):
    fake = await make_fake()
    fake.engine.die()
    await asyncio.wait_for(fake.service.failure, 5)
    answer = await asyncio.wait_for(patch(fake, max_num_seqs=2), 5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}])
async def test_wrong_or_missing_token_is_401(make_fake, headers):
    fake = await make_fake()
    for answer in (await patch(fake, headers, max_num_seqs=2), await fake.http.post("/admin/drain", headers=headers)):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert not fake.engine.limits
    assert not fake.app.state.drains


async def test_without_a_configured_token_admin_calls_are_off(make_fake, monkeypatch):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    fake = await make_fake()
    answer = await patch(fake, {"authorization": "Bearer "}, max_num_seqs=2)
    assert answer.status_code == 403
    assert "INFLIGHT_ADMIN_TOKEN" in answer.json()["error"]["message"]
    assert not fake.engine.limits


async def test_token_file_is_read_afresh_so_that_rotation_works(make_fake, monkeypatch, tmp_path):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    fake = await make_fake()
    assert (await patch(fake)).status_code == 403
    (tmp_path / "token").write_text("secret\n")
    assert (await patch(fake)).status_code == 200
    (tmp_path / "token").write_text("other\n")
    assert (await patch(fake)).status_code == 401


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
    fake.service.admitting = False
    answer = await fake.post("/v1/completions", prompt="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"


CAPACITY = Limits(8, 512)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"max_num_seqs": 4, "max_num_batched_tokens": 64, "revision": 9}', Limits(4, 64, 9)),
        ('{"max_num_seqs": 99}', Limits(8, 512)),
        ("{}", CAPACITY),
        ('{"max_num_seqs": 0}', CAPACITY),
        ('{"max_num_seqs": 4, "other": 1}', CAPACITY),
        ("max_num_seqs: 4", CAPACITY),
        ("", CAPACITY),
    ],
)
def test_limits_file_is_clamped_and_a_malformed_one_is_only_a_warning(tmp_path, caplog, content, expected):
    path = tmp_path / "limits.json"
    path.write_text(content)
    assert initial_limits(path, CAPACITY) == expected
    malformed = expected == CAPACITY and content != "{}" and "99" not in content
    assert ("malformed" in caplog.text) == malformed


def test_limits_file_need_not_exist(tmp_path, caplog):
    assert initial_limits(tmp_path / "none", CAPACITY) == CAPACITY
    assert initial_limits(None, CAPACITY) == CAPACITY
    assert not caplog.records
