"""The real server sleeps without requests, gives memory back, and wakes with the next request."""

from pathlib import Path

import httpx
import pytest

from tests.engine.server.real_server import TOKEN

pytestmark = pytest.mark.slow

FLAGS = "--dtype float32 --preemption swap --swap-space 64Mi --num-kv-blocks 24 --sleep-after 4".split()
NUM_TOKENS = 100
FIRST = range(10, 16)
"""First tokens of prompts. All together are more than the cache holds, so host memory has some."""
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
    pid, answers, resident = server.engine_pid(), [], []
    for _ in range(2):
        answers.append([ask(server, first) for first in FIRST])
        assert ask(server, FIRST[-1])[1] > 0
        resident.append(resident_bytes(pid))
        server.wait_for(lambda: asleep(server))
        resident.append(resident_bytes(pid))
        assert httpx.get(f"{server.url}/v1/runtime_config").json()["state"] == "asleep"
    first, second = ([tokens for tokens, _ in each] for each in answers)
    assert first == second
    assert answers[1][0][1] == 0, "the cache was given back, and something was found in it"
    # In the first round the engine loads its vocabulary when it is idle. 46,080 bytes are a token in float32.
    assert resident[2] - resident[3] > 0.9 * 24 * 16 * 46_080, resident
    assert server.engine_pid() == pid


def test_an_admin_lets_the_engine_sleep_and_a_request_at_that_moment_is_answered(own_server):
    server = own_server("--dtype", "float32")
    expected, _ = ask(server, FIRST[0])
    for _ in range(3):
        answer = httpx.post(f"{server.url}/admin/sleep", headers=ADMIN, timeout=60)
        assert answer.json() == {"state": "asleep"}
        assert ask(server, FIRST[0])[0] == expected
    assert httpx.post(f"{server.url}/admin/wake", headers=ADMIN).json() == {"state": "awake"}
