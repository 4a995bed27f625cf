"""Events of a real engine, as vLLM's decoder reads them, and after its engine process was lost."""

import contextlib
import json
import os
import signal
import subprocess
import time

import httpx
import numpy as np
import pytest

from inflight_engine.block_events import BlocksRemoved, BlocksStored
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.server.kv_events import wire
from inflight_engine.server.settings.kv_events import KVEventsConfig
from tests.engine.kv_events.consumer import Consumer, short
from tests.engine.server.real_server import CERTIFICATES, RealServer
from tools.localcluster.layout import current
from tools.measure.served import free_port

CACHE = current().root / "bench"
BLOCK, NUM_BLOCKS = 16, 24
PROMPT = [*range(100, 100 + 5 * BLOCK)]


@pytest.fixture(params=[(), ("--swap-space=64Mi", "--preemption=swap")], ids=["device", "host memory too"])
def published(tmp_path, request):
    """A server that publishes its events, and a consumer."""
    ports = [free_port(), free_port()]
    fields = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
        "topic": "kv",
    }
    small = f"--max-num-seqs 4 --max-num-batched-tokens 64 --block-size {BLOCK} --num-kv-blocks {NUM_BLOCKS}"
    running = RealServer(tmp_path, *small.split(), *request.param, "--kv-events-config", json.dumps(fields))
    with contextlib.closing(running), contextlib.closing(Consumer(KVEventsConfig(**fields))) as consumer:
        yield running.wait_ready(), consumer


def generate(server, token_ids, **fields):
    body = {"model": "smollm2", "prompt": token_ids, "max_tokens": 1, **fields}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=120, verify=CERTIFICATES)
    assert answer.status_code == 200, answer.text
    return answer.json()


def follow_until(consumer, condition):
    """Events follow the answer of the step that they are of."""
    deadline = time.monotonic() + 30
    consumer.catch_up()
    while not condition():
        assert time.monotonic() < deadline, consumer.events[-5:]
        time.sleep(0.05)
        consumer.catch_up()


@pytest.mark.slow
def test_a_consumer_follows_prompts_evictions_and_a_new_engine_process(published):
    server, consumer = published
    generate(server, PROMPT)
    follow_until(consumer, lambda: len(consumer.hashes) == len(PROMPT) // BLOCK)
    assert consumer.events[0] == {"type": "AllBlocksCleared"}
    stored = [each for each in consumer.events if each["type"] == "BlockStored"]
    assert [token for each in stored for token in each["token_ids"]] == PROMPT
    of_prompt = set(consumer.hashes)
    for first in range(1000, 7000, 1000):  # more than the cache holds
        generate(server, [*range(first, first + 5 * BLOCK)])
    follow_until(consumer, lambda: not of_prompt & consumer.hashes)
    assert len(consumer.hashes) <= NUM_BLOCKS
    assert not consumer.in_tier or consumer.in_tier >= of_prompt
    generate(server, PROMPT)  # what host memory has of it comes back
    follow_until(consumer, lambda: of_prompt <= consumer.hashes)
    number = consumer.next
    os.kill(server.engine_pid(), signal.SIGKILL)
    generate(server, PROMPT)
    follow_until(consumer, lambda: consumer.hashes == of_prompt)
    assert consumer.next > number
    assert consumer.gaps == []


READ_BY_VLLM = """
import sys
import msgspec
from vllm.distributed.kv_events import KVEventBatch
decode = msgspec.msgpack.Decoder(KVEventBatch).decode
for line in sys.stdin:
    batch = decode(bytes.fromhex(line))
    assert batch.data_parallel_rank == 0
    for event in batch.events:
        print(repr(event))
"""


def python_of(name, install):
    """Returns the interpreter of an environment of its own; without one the test is skipped."""
    python = CACHE / name / "venv" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}: {install}")
    return python


@pytest.mark.contract
def test_vllms_own_decoder_reads_the_batches():
    root, tokens = root_hash("tenant", "salt"), np.arange(8, dtype=np.int32)
    first, second = block_hashes(tokens, 4, root)
    events = [
        BlocksStored(first, b"", root, tokens[:4].tobytes()),
        BlocksStored(second, first, b"", tokens[4:].tobytes(), "CPU"),
        BlocksRemoved(first + second),
    ]
    batches = [wire.cleared(1.5).hex(), wire.encode(events, 4, 1.5).hex()]
    command = [python_of("vllm", "`make bench` installs it"), "-c", READ_BY_VLLM]
    read = subprocess.run(command, input="\n".join(batches), capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    cleared, *others = read.stdout.splitlines()
    assert cleared == "AllBlocksCleared()"
    assert [each.split("(")[0] for each in others] == ["BlockStored", "BlockStored", "BlockRemoved"]
    assert f"block_hashes=[{short(first)}], parent_block_hash=None, token_ids=[0, 1, 2, 3], block_size=4" in others[0]
    assert f"extra_keys=[('{root.hex()}',)], group_idx=0, kv_cache_spec_kind='full_attention'" in others[0]
    assert f"block_hashes=[{short(second)}], parent_block_hash={short(first)}, token_ids=[4, 5, 6, 7]" in others[1]
    assert "medium='CPU'" in others[1]
    assert f"block_hashes=[{short(first)}, {short(second)}], medium='GPU', group_idx=0" in others[2]
