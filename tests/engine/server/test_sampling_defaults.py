"""Requests that do not say how to sample take what the model's generation_config.json says."""

from dataclasses import asdict

import pytest

from inflight_engine.models.checkpoints.generation_config import SamplingDefaults
from tests.engine.server.fake_engine import ByteTokenizer, until
from tests.engine.server.test_scheduling_fields import BODIES, start

DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.25, max_tokens=12)
NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


async def sampling_of(make_fake, path, **body):
    fake = await make_fake(tokenizer=ByteTokenizer(DEFAULTS))
    call = start(fake, path, **body)
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200
    sampling = fake.engine.requests[0].sampling
    return {name: getattr(sampling, name) for name in (*NAMES, "max_tokens")}


@pytest.mark.parametrize("path", BODIES)
async def test_what_a_request_does_not_set_is_the_models(make_fake, path):
    assert await sampling_of(make_fake, path) == asdict(DEFAULTS)


@pytest.mark.parametrize("path", BODIES)
async def test_what_a_request_sets_stands(make_fake, path):
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 3}
    assert await sampling_of(make_fake, path, **neutral) == neutral


async def test_max_new_tokens_bounds_what_a_request_may_ask_for(make_fake):
    assert (await sampling_of(make_fake, "/v1/completions", max_tokens=50))["max_tokens"] == 12


async def test_the_defaults_in_force_are_shown(make_fake):
    fake = await make_fake(tokenizer=ByteTokenizer(DEFAULTS))
    (model,) = (await fake.http.get("/v1/models")).json()["data"]
    config = (await fake.http.get("/v1/runtime_config")).json()
    assert model["default_sampling_params"] == config["default_sampling_params"] == asdict(DEFAULTS)


async def test_while_the_model_loads_there_are_none(make_fake):
    fake = await make_fake(load=False)
    assert (await fake.http.get("/v1/models")).json()["data"][0]["default_sampling_params"] is None
