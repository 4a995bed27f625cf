"""The KV cache on a disk of a pod: after its container was killed, old conversations find their blocks there."""

import random
import re
import signal
import time
from contextlib import contextmanager

import pytest

from e2e.disruptions import processes
from e2e.scenarios.conftest import apply
from inflight_kubectl.access.cluster import Target
from inflight_kubectl.engines.engine_access import forward_to_service
from tools.localcluster import kubeconfig_path
from tools.testbed.service import is_ready

CONVERSATIONS, PROMPT, OUTPUT = 12, 200, 4
ENGINE = {
    "maxModelLen": 512,
    "maxNumSeqs": 2,
    # 728 and 364 tokens of the 2,400 of all conversations.
    "kvCache": {"memory": "16Mi", "swap": "8Mi", "disk": {"size": "128Mi"}},
    "scheduling": {"preemption": "swap"},
}
WRITTEN = (CONVERSATIONS - 5) * (PROMPT // 16)
"""Blocks that leave the device, at least."""
OLD = (0, 1, 2)


@pytest.fixture(scope="module")
def service(namespace):
    service = apply("disk", namespace, engine=ENGINE, tuning={"mode": "Off"}, scaling={"maxReplicas": 1})
    service.wait("Ready", is_ready, seconds=180)
    return service


@contextmanager
def engine(service):
    """Yields a client of the service's engine."""
    cluster = Target(kubeconfig=str(kubeconfig_path()), namespace=service.namespace).connect()
    with (
        forward_to_service(cluster, cluster.service(service.name)) as forward,
        forward.client(timeout=60) as http,
    ):
        yield http


def ask(service, prompt):
    """The answer's tokens, and how many tokens of the prompt were cached."""
    body = {"model": service.name, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True}
    with engine(service) as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["token_ids"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def blocks_on_disk(service):
    with engine(service) as http:
        page = http.get("/metrics").text
    return sum(float(value) for value in re.findall(r'^inflight_tier_blocks\{.*"disk".*\} (\S+)$', page, re.MULTILINE))


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(1)


def restarted(service, restarts):
    (pod,) = service.pods()
    return pod.ready and pod.restarts > restarts


def test_first_turns_of_old_conversations_come_from_the_disk_after_the_container_was_killed(service):
    rng = random.Random(29)
    prompts = [rng.choices(range(100, 40_000), k=PROMPT) for _ in range(CONVERSATIONS)]
    answers = [ask(service, prompt)[0] for prompt in prompts]
    # Steps report what is written, so there has to be one.
    until(lambda: ask(service, [1, 2, 3]) and blocks_on_disk(service) >= WRITTEN, 60)
    (before,) = service.pods()
    processes.send(processes.of_containers(before.uid), signal.SIGKILL)
    until(lambda: restarted(service, before.restarts), 180)
    assert service.pods()[0].uid == before.uid, "the pod is another one"
    # The blocks are found again once the weights were read.
    until(lambda: ask(service, [1, 2, 3]) and blocks_on_disk(service) >= WRITTEN, 120)
    cached = [ask(service, [*prompts[at], *answers[at], *rng.choices(range(100, 40_000), k=8)])[1] for at in OLD]
    assert sum(cached) >= PROMPT // 2, cached
