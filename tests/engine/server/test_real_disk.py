"""The real server with a tier on a disk: the first turns of old conversations find what an engine process that was
killed, or the whole server, left there, and get the tokens of an engine without tiers."""

import os
import random
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SIZES = "--dtype float32 --block-size 4 --num-kv-blocks 64 --max-model-len 256 --max-num-seqs 2".split()
TIERS = "--preemption swap --swap-space 16Mi --disk-space 256Mi".split()
NUM_CONVERSATIONS, PROMPT, OUTPUT = 8, 96, 4
WRITTEN = NUM_CONVERSATIONS * PROMPT // 4 - 64
"""Blocks that leave the device, at least."""
KILLED, RESTARTED = (0, 1), (2, 3)
"""Conversations that go on after the engine process was killed, and after the server was; the device has none of their
blocks."""


def prompts():
    rng = random.Random(29)
    return [rng.choices(range(100, 40_000), k=PROMPT) for _ in range(NUM_CONVERSATIONS)]


def next_turns(texts, answers):
    rng = random.Random(30)
    pairs = zip(texts, answers, strict=True)
    return [[*text, *answer, *rng.choices(range(100, 40_000), k=8)] for text, answer in pairs]


def ask(server, *texts):
    """Answers of texts, one after the other, and how many tokens of each were cached."""
    with httpx.Client(base_url=server.url, timeout=300) as http:
        found = [http.post("/v1/completions", json=body(text)).raise_for_status().json() for text in texts]
    tokens = [each["choices"][0]["token_ids"] for each in found]
    return tokens, [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in found]


def body(text):
    return {"prompt": text, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def of_disk(server):
    text = httpx.get(server.url + "/metrics", timeout=30).text
    return {name: float(value) for name, value in re.findall(r'^(inflight_tier_\w+)\{.*"disk".*\} (\S+)$', text, re.M)}


def eventually(condition, seconds=240):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def num_opened(server):
    """How often an engine process found a disk with blocks."""
    return len(re.findall(r"the disk has [1-9]\d* blocks", server.log.read_text()))


def check_first_turns(server, turns):
    """Ask them; returns their answers. What was said before comes from the disk. On a busy machine not all of it does:
    no request waits for longer than computing would take."""
    answers, cached = ask(server, *turns)
    counts = of_disk(server)
    print(counts, cached)
    assert sum(cached) >= PROMPT // 2
    assert counts["inflight_tier_hit_blocks_total"] >= sum(cached) / 4
    assert counts["inflight_tier_failed_blocks_total"] == 0
    return answers


def test_old_conversations_come_from_the_disk_after_a_killed_engine_process_and_after_a_restart(own_server, tmp_path):
    flags = [*SIZES, *TIERS, "--disk-path", str(tmp_path / "kv")]
    server = own_server(*flags)
    first, _ = ask(server, *prompts())
    turns = next_turns(prompts(), first)
    eventually(lambda: ask(server, [1, 2, 3]) and of_disk(server)["inflight_tier_blocks"] >= WRITTEN)

    os.kill(server.engine_pid(), signal.SIGKILL)
    eventually(lambda: num_opened(server) == 1 and server.status("/ready") == 200)
    answers = check_first_turns(server, [turns[at] for at in KILLED])
    engine = server.engine_pid()
    server.close()
    eventually(lambda: not Path(f"/proc/{engine}").exists())

    server = own_server(*flags)
    assert num_opened(server) == 1, "the server is ready before it finds what is on its disk"
    answers += check_first_turns(server, [turns[at] for at in RESTARTED])
    server.close()

    alone = own_server(*SIZES, "--no-prefix-caching")
    some = [*KILLED, *RESTARTED]
    assert ask(alone, *(prompts()[at] for at in some))[0] == [first[at] for at in some]
    assert ask(alone, *(turns[at] for at in some))[0] == answers
