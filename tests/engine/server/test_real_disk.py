"""The real server with a tier on a disk: what its engine process, killed, or the whole server left there is found by the
first turns of old conversations, and they get the tokens of an engine without tiers."""

import asyncio
import os
import random
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SIZES = "--dtype float32 --block-size 4 --num-kv-blocks 96 --max-model-len 256 --max-num-seqs 2".split()
TIERS = "--preemption swap --swap-space 16Mi --disk-space 256Mi".split()
NUM_CONVERSATIONS, PROMPT, OUTPUT = 12, 96, 6
KILLED, RESTARTED = range(6), range(6, NUM_CONVERSATIONS)
"""Conversations that go on after the engine process was killed, and after the server was."""


def prompts():
    rng = random.Random(29)
    return [rng.choices(range(100, 40_000), k=PROMPT) for _ in range(NUM_CONVERSATIONS)]


def ask(server, *texts):
    """Answers of texts that come at once, and how many of their tokens were cached."""

    async def ask_all():
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as http:
            return await asyncio.gather(*(http.post("/v1/completions", json=body(text)) for text in texts))

    found = [answer.raise_for_status().json() for answer in asyncio.run(ask_all())]
    tokens = [each["choices"][0]["token_ids"] for each in found]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in found]
    return tokens, cached


def body(text):
    return {
        "prompt": text,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def of_disk(server):
    text = httpx.get(server.url + "/metrics", timeout=30).text
    return {name: float(value) for name, value in re.findall(r'^(inflight_tier_\w+)\{.*"disk".*\} (\S+)$', text, re.M)}


def eventually(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def num_opened(server):
    """How often an engine process found a disk with blocks."""
    return len(re.findall(r"the disk has [1-9]\d* blocks", server.log.read_text()))


def test_old_conversations_come_from_the_disk_after_a_killed_engine_process_and_after_a_restart(own_server, tmp_path):
    flags = [*SIZES, *TIERS, "--disk-path", str(tmp_path / "kv")]
    server = own_server(*flags)
    first = [ask(server, text)[0][0] for text in prompts()]
    turns = [
        [*text, *answer, *random.Random(at).choices(range(100, 40_000), k=8)]
        for at, (text, answer) in enumerate(zip(prompts(), first, strict=True))
    ]
    written = NUM_CONVERSATIONS * PROMPT // 4 - 96
    eventually(lambda: ask(server, [1, 2, 3]) and of_disk(server)["inflight_tier_blocks"] >= written)

    killed = server.engine_pid()
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{killed}").exists())
    eventually(lambda: num_opened(server) == 1 and server.status("/ready") == 200, 240)
    after_kill, cached = ask(server, *(turns[at] for at in KILLED))
    counts = of_disk(server)
    print("after the engine process was killed", counts, cached)
    assert counts["inflight_tier_hit_blocks_total"] > 20
    assert counts["inflight_tier_failed_blocks_total"] == 0
    assert sum(cached) > 20 * 4
    server.process.kill()
    server.process.wait()

    server = own_server(*flags)
    eventually(lambda: num_opened(server) == 1, 240)
    after_restart, cached = ask(server, *(turns[at] for at in RESTARTED))
    counts = of_disk(server)
    print("after the server was killed", counts, cached)
    assert counts["inflight_tier_hit_blocks_total"] > 20
    assert counts["inflight_tier_failed_blocks_total"] == 0
    assert sum(cached) > 20 * 4
    server.close()

    alone = own_server(*SIZES, "--no-prefix-caching")
    assert [ask(alone, text)[0][0] for text in prompts()] == first
    assert [ask(alone, text)[0][0] for text in turns] == after_kill + after_restart
