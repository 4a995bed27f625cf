"""The real server sleeps without requests, gives memory back, and wakes with the next request."""

import time
from pathlib import Path

import httpx
import pytest

from tests.engine.server.real_server import TOKEN

pytestmark = pytest.mark.slow

FLAGS = (
    "--dtype float32 --num-threads 1 --preemption swap --swap-space 64Mi --num-kv-blocks 192 --sleep-after 2".split()
)
NUM_TOKENS = 600
ADMIN = {"authorization": f"Bearer {TOKEN}"}


def ask(server, first):
    """Tokens of an answer to a long prompt, and how many of the prompt were cached."""
    body = {"prompt": [first, *range(1000, 1000 + NUM_TOKENS)], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json={**body, "return_token_ids": True}, timeout=300)
    found = answer.raise_for_status().json()
    return found["choices"][0]["token_ids"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def asleep(server):
    assert httpx.get(f"{server.url}/ready").status_code == 200
    return server.metrics()["inflight_asleep"] == 1.0


def test_an_idle_engine_gives_its_cache_back_and_answers_the_same_when_it_wakes(own_server):
    server = own_server(*FLAGS)
    pid = server.engine_pid()
    before = [ask(server, first) for first in range(10, 22)]  # more than the cache holds, so host memory has some
    assert ask(server, 21)[1] > 0
    # 46,080 bytes a token, in float32.
    cache, taken = 192 * 16 * 46_080, resident_bytes(pid)
    server.wait_for(lambda: asleep(server))
    assert taken - resident_bytes(pid) > 0.9 * cache
    assert httpx.get(f"{server.url}/v1/runtime_config").json()["state"] == "asleep"
    started = time.monotonic()
    after = [ask(server, 10)]
    print(f"an answer of a sleeping engine took {time.monotonic() - started:.2f} s")
    assert not asleep(server)
    after += [ask(server, first) for first in range(11, 22)]
    assert [tokens for tokens, _ in after] == [tokens for tokens, _ in before]
    assert after[0][1] == 0, "the cache was given back, and something was found in it"
    assert server.engine_pid() == pid


def test_an_admin_lets_the_engine_sleep_and_a_request_at_that_moment_is_answered(own_server):
    server = own_server("--dtype", "float32", "--num-threads", "1")
    expected, _ = ask(server, 10)
    for _ in range(3):
        answer = httpx.post(f"{server.url}/admin/sleep", headers=ADMIN, timeout=60)
        assert answer.json() == {"state": "asleep"}
        assert ask(server, 10)[0] == expected
    assert httpx.post(f"{server.url}/admin/wake", headers=ADMIN).json() == {"state": "awake"}
