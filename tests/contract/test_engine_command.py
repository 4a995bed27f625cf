"""The command line the operator writes is one the engine's own parser takes: the two meet only there."""

import argparse
import copy
from typing import get_args

import pytest
from pydantic.alias_generators import to_snake

from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.preemption import VICTIMS
from inflight_engine.server.settings.flags import add_serve_flags, read_config
from inflight_operator.api.engine.fields import Engine
from inflight_operator.api.pods.scheduling import BOUNDS, Scheduling
from inflight_operator.api.pods.scheduling import ServiceClass as APIServiceClass
from inflight_operator.api.pods.template import KV_FOLDER, MODEL_CACHE_FOLDER
from inflight_operator.render.engines.inflight import engine_command
from inflight_operator.render.plan import EngineObservability, ModelCache
from inflight_settings.scheduling import PreemptionMode, ServiceClass
from tests.operator.render.services import CPU, EVERYTHING, make


def literals(model, field):
    return get_args(model.model_fields[field].annotation)


def parsed(**spec):
    return read(engine_command(make(**spec), "/limits.json", EngineObservability(), None))


def read(command):
    program, verb, *arguments = command
    assert (program, verb) == ("inflight-engine", "serve")
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    add_serve_flags(parser)
    return read_config(parser, arguments)


def test_the_engine_takes_the_command_of_a_service_of_four_lines():
    config = parsed(**CPU)
    assert config.engine.model == "builtin://smollm2"
    assert config.engine.device == "cpu"
    assert config.served_model_name == "chat"
    assert str(config.limits_file) == "/limits.json"
    assert (config.admin_port, config.serving_metrics) == (8001, True)


def test_every_field_arrives_in_the_engine_with_its_value():
    fields = copy.deepcopy(EVERYTHING)
    del fields["engine"]["kvCache"]["disk"]  # which needs the prefix cache
    config = parsed(**fields)
    engine = config.engine
    assert (engine.model, engine.revision, engine.device, engine.dtype) == (
        "hf://Qwen/Qwen3-8B",
        "v1",
        "cuda",
        "bfloat16",
    )
    assert (engine.max_model_len, engine.max_num_seqs, engine.max_num_batched_tokens) == (4096, 64, 2048)
    assert (engine.kv_cache_memory, engine.block_size) == (3 * 2**29, 32)
    assert (engine.quantization, engine.tensor_parallel_size) == ("int8", 2)
    assert (engine.kv_cache_dtype, engine.gpu_memory_utilization) == ("fp8", 0.8)
    assert (engine.kv_headroom, engine.swap_space, engine.prefix_caching) == (0.1, 2**31, False)
    assert (engine.policy, engine.priority_aging, engine.ttft_target) == ("deadline", 60.5, 1.5)
    assert engine.ttft_per_1k_tokens == 0.06
    assert (engine.preemption, engine.preemption_victim) == ("swap", "most_preempted_last")
    assert engine.classes == (
        ServiceClass("interactive", 4.0, -1, 0.5, 0.05, 8, 4.0, 1200.0),
        ServiceClass("batch", weight=0.5),
        ServiceClass("rest"),
    )
    assert config.max_queued_requests == 10
    assert (config.shed_after, config.queue_timeout, config.request_timeout) == (20, 0.5, 90)
    assert (config.drain_delay, config.drain_timeout) == (5, 30)
    assert config.served_model_name == "qwen"
    assert (config.port, config.admin_port, config.serving_metrics) == (8000, 8001, False)


def test_a_disk_behind_the_cache_arrives_with_its_folder():
    engine = parsed(engine={"kvCache": {"swap": "2Gi", "disk": {"size": "20Gi"}}}).engine
    assert (engine.swap_space, engine.disk_space, str(engine.disk_path)) == (2**31, 20 * 2**30, KV_FOLDER)


def test_a_model_cache_arrives_with_its_size():
    service = make(model={"source": "s3://models/qwen"})
    cache = ModelCache(claim="models", host_path="", size=10**12)
    engine = read(engine_command(service, "/limits.json", EngineObservability(), None, cache)).engine
    assert (engine.model_cache, engine.model_cache_size) == (MODEL_CACHE_FOLDER, 10**12)


def test_a_field_that_is_not_given_has_the_same_default_on_both_sides():
    # The operator writes no flag for what is as by default: then the engine's own default counts.
    engine, cache, scheduling = parsed(**CPU).engine, Engine().kv_cache, Engine().scheduling
    assert (engine.kv_headroom, engine.prefix_caching) == (cache.headroom, cache.prefix_caching)
    assert engine.swap_space == parse_quantity(cache.swap)
    assert (engine.kv_cache_dtype, engine.gpu_memory_utilization) == (cache.dtype, cache.memory_fraction)
    assert (engine.quantization, engine.tensor_parallel_size) == (Engine().quantization, 1)
    assert (engine.policy, scheduling.policy) == ("fcfs", None)
    assert (parsed(**CPU).shed_after, scheduling.shed_after) == (None, None)
    assert engine.priority_aging == parse_duration(scheduling.priority_aging)
    assert engine.preemption == scheduling.preemption
    assert engine.preemption_victim == to_snake(scheduling.preemption_victim)
    (alone,) = parsed(**CPU, engine={"scheduling": {"classes": [{"name": "chat"}]}}).engine.classes
    default = APIServiceClass(name="chat")
    assert (alone.name, alone.weight, alone.priority) == (default.name, default.weight, default.priority)
    given = (default.slo.ttft_p95, default.slo.tpot_p95, default.max_queued_requests)
    assert (alone.ttft_target, alone.tpot_target, alone.max_queued_requests) == given == (None, None, None)


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_engine_takes_the_longest_and_shortest_durations_that_the_api_server_takes(bound):
    classes = [
        {"name": "chat", "slo": {"ttftP95": bound, "tpotP95": bound}, "shedAfter": bound, "requestTimeout": bound}
    ]
    scheduling = {"priorityAging": bound, "shedAfter": bound, "classes": classes}
    config = parsed(**CPU, slo={"ttftP95": bound}, engine={"scheduling": scheduling})
    engine, length = config.engine, parse_duration(bound)
    assert config.shed_after == engine.classes[0].shed_after == engine.ttft_target == length
    assert engine.priority_aging == engine.classes[0].request_timeout == length
    assert (engine.classes[0].ttft_target, engine.classes[0].tpot_target) == (length, length)


@pytest.mark.parametrize("most", ["60s", "1ms", "0s"])
def test_the_engine_takes_what_the_api_server_takes_for_a_thousand_tokens(most):
    config = parsed(**CPU, slo={"ttftPerThousandTokens": most})
    assert config.engine.ttft_per_1k_tokens == parse_duration(most)


@pytest.mark.parametrize("quantization", literals(Engine, "quantization"))
def test_the_engine_knows_every_quantization(quantization):
    assert parsed(**CPU, engine={"quantization": quantization}).engine.quantization == quantization


POLICY_NAMES = [name for choice in literals(Scheduling, "policy") for name in get_args(choice)]


@pytest.mark.parametrize(
    ("slo", "scheduling", "policy"),
    [
        (None, {}, "fcfs"),
        ({}, {}, "deadline"),
        ({}, {"policy": "fcfs"}, "fcfs"),
        (None, {"classes": [{"name": "chat", "slo": {"ttftP95": "1s"}}]}, "deadline"),
        ({}, {"policy": "fcfs", "classes": [{"name": "chat", "slo": {"ttftP95": "1s"}}]}, "fcfs"),
    ],
)
def test_engines_order_by_deadline_where_there_is_a_target_unless_another_policy_is_asked_for(slo, scheduling, policy):
    assert parsed(**CPU, slo=slo, engine={"scheduling": scheduling}).engine.policy == policy


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_engine_knows_every_policy(policy):
    assert parsed(**CPU, engine={"scheduling": {"policy": policy}}).engine.policy == policy


@pytest.mark.parametrize("preemption", literals(Scheduling, "preemption"))
def test_the_engine_knows_every_way_to_preempt(preemption):
    fields = {"scheduling": {"preemption": preemption}, "kvCache": {"swap": "1Gi"}}
    assert parsed(**CPU, engine=fields).engine.preemption == preemption


@pytest.mark.parametrize("victim", literals(Scheduling, "preemption_victim"))
def test_the_engine_knows_every_victim(victim):
    config = parsed(**CPU, engine={"scheduling": {"preemptionVictim": victim}})
    assert config.engine.preemption_victim == to_snake(victim)


def test_whatever_the_engine_can_choose_from_can_be_asked_for_in_a_spec():
    assert set(POLICY_NAMES) == set(POLICIES)
    assert set(literals(Scheduling, "preemption")) == set(get_args(PreemptionMode))
    assert {to_snake(victim) for victim in literals(Scheduling, "preemption_victim")} == set(VICTIMS)


def test_the_engines_schedule_can_be_recorded_by_an_extra_argument():
    assert str(parsed(**CPU, engine={"extraArgs": ["--record=steps"]}).engine.record) == "steps"
