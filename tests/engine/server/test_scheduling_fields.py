"""Scheduling fields of requests reach the engine; classes have queues and counts of their own."""

import asyncio

import pytest

from inflight_engine.request import FinishReason
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass, parse_service_class
from tests.engine.server.fake_engine import until
from tests.engine.server.test_requests import metrics

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/generate": {"prompt": "hi"},
}
CLASSES = EngineConfig(
    "fake",
    classes=(
        ServiceClass("interactive", 4.0, -10, ttft_target=1000.0, tpot_target=1e-9),
        ServiceClass("batch", max_queued_requests=2),
    ),
)


def start(fake, path="/v1/completions", headers=None, **body):
    return asyncio.create_task(fake.http.post(path, json={**BODIES[path], **body}, headers=headers))


@pytest.mark.parametrize("path", BODIES)
async def test_scheduling_fields_reach_the_engine(make_fake, path):
    fake = await make_fake(engine=CLASSES, trust_tenant_header=True)
    said = {"priority": -3, "class": "batch", "cache_salt": "s", "expected_output_tokens": 5}
    call = start(fake, path, {"X-Inflight-Tenant": "team-a"}, max_tokens=9, **said)
    await until(lambda: fake.engine.requests)
    request = fake.engine.requests[0].scheduling
    assert (request.priority, request.service_class, request.tenant) == (-3, "batch", "team-a")
    assert (request.cache_salt, request.predicted_tokens) == ("s", 5)
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200


async def test_defaults_are_those_of_the_first_class(make_fake):
    fake = await make_fake(engine=CLASSES)
    call = start(fake)
    await until(lambda: fake.engine.requests)
    request = fake.engine.requests[0].scheduling
    assert (request.priority, request.service_class, request.tenant) == (-10, "interactive", "")
    assert (request.cache_salt, request.predicted_tokens) == ("", None)
    fake.engine.answer(0, "x")
    await call


@pytest.mark.parametrize("path", BODIES)
async def test_sampling_set_reaches_the_engine_from_every_endpoint(make_fake, path):
    fake = await make_fake()
    penalties = {"repetition_penalty": 1.5, "presence_penalty": -2, "frequency_penalty": 2.0}
    bias = {"5": -100, "0": 0.5}
    call = start(fake, path, min_p=0.25, logit_bias=bias, stop_token_ids=[9], ignore_eos=True, **penalties)
    await until(lambda: fake.engine.requests)
    sampling = fake.engine.requests[0].sampling
    assert (sampling.min_p, sampling.logit_bias) == (0.25, ((5, -100.0), (0, 0.5)))
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, -2.0, 2.0)
    assert sampling.stop_token_ids == (9,)
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200


@pytest.mark.parametrize("expected", [50, 2**80])
async def test_prediction_is_at_most_what_may_be_generated(make_fake, expected):
    fake = await make_fake()
    call = start(fake, max_tokens=9, expected_output_tokens=expected)
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].scheduling.predicted_tokens == 9
    fake.engine.answer(0, "x")
    await call


async def test_unknown_class_is_refused_with_those_that_exist(make_fake):
    fake = await make_fake(engine=CLASSES)
    answer = await start(fake, **{"class": "bulk"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "class")
    assert "interactive, batch" in error["message"]


@pytest.mark.parametrize("tenant", ["", "two words", "x" * 129, "caf\xe9", "a\tb"])
async def test_tenant_that_is_not_one_ascii_word_is_refused(make_fake, tenant):
    fake = await make_fake(trust_tenant_header=True)
    answer = await start(fake, headers=[(b"X-Inflight-Tenant", tenant.encode("latin-1"))])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Inflight-Tenant")


async def test_two_tenants_are_refused(make_fake):
    fake = await make_fake(trust_tenant_header=True)
    answer = await start(fake, headers=[("X-Inflight-Tenant", "a"), ("x-inflight-tenant", "b")])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Inflight-Tenant")


@pytest.mark.parametrize("tenant", ["team-a", "two words"])
async def test_nobody_can_name_a_tenant_where_no_gateway_is_trusted(make_fake, tenant):
    fake = await make_fake()
    call = start(fake, headers={"X-Inflight-Tenant": tenant})
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].scheduling.tenant == ""
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200


async def test_full_class_is_503_with_its_name_while_others_are_taken(make_fake):
    fake = await make_fake(engine=CLASSES, max_queued_requests=8)
    waiting = [start(fake, **{"class": "batch"}) for _ in range(2)]
    await until(lambda: len(fake.engine.requests) == 2)
    refused = await start(fake, **{"class": "batch"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert "class batch" in error["message"]
    never = await start(fake, n=3, **{"class": "batch"})
    assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
    waiting.append(start(fake))
    await until(lambda: len(fake.engine.requests) == 3)
    seen = await metrics(fake)
    assert seen['inflight_class_requests_waiting{class="batch"}'] == 2
    assert seen['inflight_class_requests_waiting{class="interactive"}'] == 1
    assert seen['inflight_admission_rejections_total{reason="class_queue_full"}'] == 1
    assert seen['inflight_admission_rejections_total{reason="never_fits"}'] == 1
    # Admitted, one makes room for the next.
    fake.engine.report(admitted=[(0, 0)], num_running=1)
    await until(lambda: fake.service.session.stats.num_running == 1)
    waiting.append(start(fake, **{"class": "batch"}))
    await until(lambda: len(fake.engine.requests) == 4)
    for request_id in range(4):
        fake.engine.answer(request_id, "x")
    assert [(await call).status_code for call in waiting] == [200] * 4


async def test_targets_of_a_class_are_counted_where_it_has_them(make_fake):
    fake = await make_fake(engine=CLASSES)
    for request_id, (name, text, reason) in enumerate(
        (
            ("interactive", "ab", FinishReason.STOP),
            ("interactive", "a", FinishReason.LENGTH),
            ("batch", "ab", FinishReason.STOP),
            ("interactive", "", FinishReason.ERROR),
        )
    ):
        call = start(fake, **{"class": name})
        await until(lambda count=request_id + 1: len(fake.engine.requests) == count)
        fake.engine.answer(request_id, text, reason=reason)
        await call
    seen = await metrics(fake)
    assert seen['inflight_class_requests_finished_total{class="interactive"}'] == 3
    assert seen['inflight_class_requests_finished_total{class="batch"}'] == 1
    assert seen['inflight_class_ttft_met_total{class="interactive"}'] == 2
    assert seen['inflight_class_tpot_met_total{class="interactive"}'] == 0
    assert not any(name.endswith('_met_total{class="batch"}') for name in seen)


@pytest.mark.parametrize(("seconds", "met"), [(0.0, 0), (1e6, 1)])
async def test_the_ttft_target_of_a_request_is_that_of_its_class_and_what_its_prompt_adds(make_fake, seconds, met):
    classes = (ServiceClass("a", ttft_target=1e-9),)
    fake = await make_fake(engine=EngineConfig("fake", classes=classes, ttft_per_1k_tokens=seconds))
    call = start(fake)
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "ab")
    await call
    assert (await metrics(fake))['inflight_class_ttft_met_total{class="a"}'] == met


async def test_tpot_counts_answers_of_at_least_two_tokens(make_fake):
    fake = await make_fake(engine=EngineConfig("fake", classes=(parse_service_class("a:tpot=1000"),)))
    for request_id, text in enumerate(("a", "ab")):
        call = start(fake)
        await until(lambda count=request_id + 1: len(fake.engine.requests) == count)
        fake.engine.answer(request_id, text)
        await call
    seen = await metrics(fake)
    assert seen['inflight_class_tpot_met_total{class="a"}'] == 1
    assert seen['inflight_class_requests_finished_total{class="a"}'] == 2


@pytest.mark.parametrize(
    ("fields", "tiers"),
    [
        ({}, set()),
        ({"swap_space": 1 << 20}, {"host", "peer"}),
        ({"swap_space": 1 << 20, "prefix_caching": False}, set()),
    ],
)
async def test_a_tier_that_is_not_there_has_no_metrics(make_fake, fields, tiers):
    fake = await make_fake(engine=EngineConfig("fake", **fields))
    seen = await metrics(fake)
    assert not [name for name in seen if name.startswith("inflight_disk_")]
    names = [name for name in seen if name.startswith("inflight_tier_")]
    assert {name.split('"')[1] for name in names} == tiers
    assert len(names) == (8 if tiers else 0)


async def test_counts_of_the_tiers_and_of_the_prefix_cache_are_the_engines(make_fake):
    fake = await make_fake(engine=EngineConfig("fake", swap_space=1, disk_space=1, disk_path="/disk"))
    counts = {"num_stored_blocks": 9, "num_loaded_blocks": 3, "num_failed_loads": 1}
    counts |= {"num_disk_blocks": 20, "num_disk_stored": 8, "num_disk_loaded": 4, "num_disk_failed": 2}
    counts |= {"num_disk_dropped": 5, "disk_seconds_per_block": 0.5, "peer_seconds_per_block": 0.25}
    counts |= {"num_peer_loaded": 6}
    counts |= {"num_disk_slower": 11, "num_disk_stalled": 12, "num_disk_full": 13, "num_disk_late": 14}
    fake.engine.report(num_tier_blocks=7, prefix_queries=100, prefix_hits=60, **counts)
    await until(lambda: fake.service.session.stats.num_tier_blocks == 7)
    seen = await metrics(fake)
    runner = fake.service.session.ready.runner
    block_bytes = runner.kv_bytes_per_token * runner.block_size
    of_tier = {name: value for name, value in seen.items() if name.startswith("inflight_tier_")}
    assert of_tier == {
        'inflight_tier_blocks{tier="host"}': 7,
        'inflight_tier_hit_blocks_total{tier="host"}': 3,
        'inflight_tier_failed_blocks_total{tier="host"}': 1,
        'inflight_tier_stored_bytes_total{tier="host"}': 9 * block_bytes,
        'inflight_tier_loaded_bytes_total{tier="host"}': 3 * block_bytes,
        'inflight_tier_bytes_per_second{tier="host"}': 0,
        'inflight_tier_blocks{tier="disk"}': 20,
        'inflight_tier_hit_blocks_total{tier="disk"}': 4,
        'inflight_tier_failed_blocks_total{tier="disk"}': 2,
        'inflight_tier_stored_bytes_total{tier="disk"}': 8 * block_bytes,
        'inflight_tier_loaded_bytes_total{tier="disk"}': 4 * block_bytes,
        'inflight_tier_dropped_blocks_total{tier="disk"}': 5,
        'inflight_tier_bytes_per_second{tier="disk"}': 2 * block_bytes,
        'inflight_tier_bytes_per_second{tier="peer"}': 4 * block_bytes,
        'inflight_tier_loaded_bytes_total{tier="peer"}': 6 * block_bytes,
    }
    refused = [
        seen[f'inflight_disk_refused_loads_total{{reason="{reason}"}}']
        for reason in ("slower", "stalled", "full", "late")
    ]
    assert refused == [11, 12, 13, 14]
    assert (seen["vllm:prefix_cache_queries_total"], seen["vllm:prefix_cache_hits_total"]) == (100, 60)
