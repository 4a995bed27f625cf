"""The command line the operator writes is one the engine's own parser takes: the two meet only there."""

import argparse

from inflight_engine.server.serve_flags import add_serve_flags, server_config
from inflight_operator.api import InferenceService
from inflight_operator.render import Settings
from inflight_operator.render.command import engine_command


def parsed(**spec):
    service = InferenceService.from_dict({"metadata": {"name": "chat", "namespace": "team", "uid": "u"}, "spec": spec})
    program, verb, *arguments = engine_command(service, Settings("image", propagation_seconds=7), "/limits.json")
    assert (program, verb) == ("inflight-engine", "serve")
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    add_serve_flags(parser)
    return server_config(parser.parse_args(arguments))


def test_the_engine_takes_the_command_of_a_service_of_four_lines():
    config = parsed(model={"source": "builtin://smollm2"}, accelerator={"count": 0})
    assert config.engine.model == "builtin://smollm2"
    assert config.engine.device == "cpu"
    assert config.served_model_name == "chat"
    assert str(config.limits_file) == "/limits.json"


def test_every_field_arrives_in_the_engine_with_its_value():
    config = parsed(
        model={"source": "hf://Qwen/Qwen3-8B", "revision": "v1", "servedName": "qwen"},
        engine={
            "dtype": "bfloat16",
            "maxModelLen": 4096,
            "maxNumSeqs": 64,
            "maxNumBatchedTokens": 2048,
            "kvCache": {"memory": "1.5Gi"},
            "maxQueuedRequests": 10,
            "queueTimeout": "500ms",
            "requestTimeout": "1m30s",
            "extraArgs": ["--block-size=32"],
        },
        rollout={"drainTimeout": "30s"},
    )
    engine = config.engine
    assert (engine.model, engine.revision, engine.device, engine.dtype) == (
        "hf://Qwen/Qwen3-8B",
        "v1",
        "cuda",
        "bfloat16",
    )
    assert (engine.max_model_len, engine.max_num_seqs, engine.max_num_batched_tokens) == (4096, 64, 2048)
    assert (engine.kv_cache_memory, engine.block_size) == (3 * 2**29, 32)
    assert config.bounds.max_requests == 10
    assert (config.queue_timeout, config.request_timeout) == (0.5, 90)
    assert (config.drain_delay, config.drain_timeout) == (7, 30)
    assert config.served_model_name == "qwen"
