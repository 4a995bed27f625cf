"""Ports of engines beside HTTP: vLLM's gRPC API, and the KV cache events by which the gateway knows what each holds."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from e2e.disruptions.stage import GATEWAY, system_pods
from e2e.scenarios.conftest import apply
from inflight_base.manifest.names import GRPC_PORT_NAME, child_names
from tools.localcluster import kubectl
from tools.testbed.numbers import STATE_PORT, counted, page
from tools.testbed.service import is_ready

REPLICAS = 2
PROMPT = "The capital of France is"
VOCABULARY = "the river moves past old stones while quiet birds watch from high branches near open fields".split()
CONVERSATIONS, WORDS, BLOCK = 6, 800, 16
ENGINES = "inflight_gateway_kv_event_engines"
IDLE_SECONDS = 3.0
"""Until the gateway's samples of the engines are of idle ones: it weighs their load against what they hold."""
FOUND = "inflight_gateway_cached_tokens_found_total"


@pytest.fixture(scope="module")
def service(namespace):
    """Two engines that compute in float32, in which an answer does not depend on the other requests of a batch."""
    service = apply(
        "ports",
        namespace,
        engine={"dtype": "float32", "maxNumSeqs": 4, "grpc": True, "kvEvents": True},
        scaling={"minReplicas": REPLICAS, "maxReplicas": REPLICAS},
        tuning={"mode": "Off"},
        gateway={"enabled": True},
    )
    service.wait(
        "two replicas", lambda status: is_ready(status) and status.get("readyReplicas") == REPLICAS, seconds=240
    )
    return service


@pytest.fixture(scope="module")
def http(service):
    """A client of the gateway."""
    address = kubectl("-n", service.namespace, "get", "service", service.name, "-o", "jsonpath={.spec.clusterIP}")
    host = {"host": f"{service.name}.{service.namespace}"}
    with httpx.Client(base_url=f"http://{address}", headers=host, trust_env=False, timeout=120) as client:
        yield client


def complete(http, service, prompt, **more):
    body = {"model": service.name, "prompt": prompt, "max_tokens": 16, "temperature": 0, "return_token_ids": True}
    answer = http.post("/v1/completions", json=body | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def grpc_addresses(service):
    """The engines' addresses in the slices of their own Service."""
    name = child_names(service.name).engines
    listed = kubectl(
        "-n", service.namespace, "get", "endpointslices", f"-lkubernetes.io/service-name={name}", "-o", "json"
    )
    return {
        f"{address}:{port['port']}"
        for each in json.loads(listed)["items"]
        for port in each["ports"]
        if port["name"] == GRPC_PORT_NAME
        for endpoint in each["endpoints"]
        for address in endpoint["addresses"]
    }


def test_each_engine_streams_over_grpc_the_tokens_that_the_gateway_answers(service, http):
    expected = complete(http, service, PROMPT)["choices"][0]["token_ids"]
    addresses = grpc_addresses(service)
    assert len(addresses) == REPLICAS
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            assert stub.HealthCheck(pb.HealthCheckRequest(), timeout=10).healthy
            sampling = pb.SamplingParams(max_tokens=16, temperature=0)
            call = stub.Generate(pb.GenerateRequest(text=PROMPT, stream=True, sampling_params=sampling), timeout=60)
            *chunks, last = call
        assert [token for each in chunks for token in each.chunk.token_ids] == expected
        assert [*last.complete.output_ids] == expected


def at_gateway(metric, service, **labels):
    """The sum of a metric of the service over the gateway's pods."""
    return sum(counted(page(pod.name, STATE_PORT), metric, service, **labels) for pod in system_pods(GATEWAY))


def asked_at_once(http, service, prompts):
    """Usage of each. Requests at the same time go to different engines."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        return [each["usage"] for each in threads.map(lambda prompt: complete(http, service, prompt), prompts)]


def test_the_gateway_finds_each_prompt_at_the_engine_that_has_it_by_events(service, http):
    rng = random.Random(29)

    def prompts():
        return [" ".join(rng.choices(VOCABULARY, k=WORDS)) for _ in range(CONVERSATIONS)]

    end = time.monotonic() + 60
    while at_gateway(ENGINES, service, state="exact") < REPLICAS:
        assert time.monotonic() < end, "the events of an engine are not known"
        asked_at_once(http, service, prompts())
    mine, before = prompts(), at_gateway(FOUND, service, index="exact")
    sent = [each["prompt_tokens"] for each in asked_at_once(http, service, mine)]
    time.sleep(IDLE_SECONDS)
    # Another end: what is found is the prompt's own.
    again = [complete(http, service, f"{prompt} and {at}")["usage"] for at, prompt in enumerate(mine)]
    found = [each["prompt_tokens_details"]["cached_tokens"] for each in again]
    assert all(cached > tokens - 2 * BLOCK for cached, tokens in zip(found, sent, strict=True)), found
    assert at_gateway(FOUND, service, index="exact") - before == sum(found)
