"""The real engine process, killed or stopped under load: every request is answered as if nothing had happened; then the
server goes on with another engine process."""

import asyncio
import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_CLIENTS = 16
OUTPUT_TOKENS = 10
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}
LATEST_SECONDS = 240.0
"""After the engine process was lost: until it is ended, and another one is loaded and has computed the rest. Other
tests run on the same cores."""


@dataclass
class Outcome:
    """`ended`: seconds, monotonic. `kind`: whole, or an error's code, or broken."""

    ended: float
    kind: str
    tokens: list[int]


def question(number) -> tuple[str, dict]:
    """Path and body of a client. Most are bound, to a pattern or to the call of a function: they come last, and the
    others must leave slots to them."""
    fields = {"max_tokens": OUTPUT_TOKENS, "temperature": 0, "stream": number % 2 == 0}
    if number % 5 == 0:
        return "/v1/generate", {**fields, "prompt": f"Once upon a time, {number} ", "ignore_eos": True}
    fields["return_token_ids"] = True
    if number % 4 < 2:
        messages = [{"role": "user", "content": f"Paint {number}."}]
        return "/v1/chat/completions", {**fields, "messages": messages, "tools": [TOOL], "tool_choice": "required"}
    return "/v1/completions", {**fields, "prompt": f"Once {number} ", "structured_outputs": {"regex": "[0-9]{80}"}}


async def ask(http, number) -> Outcome:
    """Every other client streams."""
    path, body = question(number)
    events: list[dict] = [{}]
    try:
        async with http.stream("POST", path, json=body) as answer:
            async for line in answer.aiter_lines():
                if (text := line.removeprefix("data: ")).startswith("{"):
                    events.append(json.loads(text))
    except httpx.HTTPError as error:
        return Outcome(time.monotonic(), f"broken: {error!r}", [])
    choices = [choice for each in events for choice in each.get("choices", [each])]
    tokens = [token for each in choices for token in each.get("tokens") or each.get("token_ids") or []]
    last = choices[-1]
    kind = last["error"]["code"] if "error" in last else "whole" if last.get("finish_reason") else "broken"
    return Outcome(time.monotonic(), kind, tokens)


async def ask_all(server, numbers=range(NUM_CLIENTS)) -> list[Outcome]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
        return await asyncio.gather(*(ask(http, number) for number in numbers))


async def under_load(server, disrupt) -> tuple[float, list[Outcome]]:
    """Clients for twice the slots; `disrupt` once some have begun and others wait. When that was, and outcomes."""
    await ask_all(server, (1, 2))  # so that the grammars of all are compiled
    known = server.metrics()["vllm:generation_tokens_total"]
    calls = asyncio.create_task(ask_all(server))
    while True:
        seen = await asyncio.to_thread(server.metrics)
        if seen["vllm:num_requests_waiting"] and seen["vllm:generation_tokens_total"] > known + 24:
            break
        await asyncio.sleep(0.02)
    disrupted = time.monotonic()
    disrupt()
    return disrupted, await calls


def disrupted_server(own_server, number, *flags):
    return disrupted(own_server, lambda _, engine: os.kill(engine, number), *flags)


def disrupted(own_server, disrupt, *flags):
    """The server, when `disrupt` was called with it and its engine process, and outcomes."""
    server = own_server(
        "--max-num-seqs", "8", "--seed", "1", "--dtype", "float32", "--tool-call-parser", "hermes", *flags
    )
    expected = httpx.get(f"{server.url}/v1/runtime_config").json()
    change = {"max_num_seqs": 6, "revision": 5}
    token = {"authorization": "Bearer test-token"}
    assert httpx.patch(f"{server.url}/v1/runtime_config", json=change, headers=token).status_code == 200
    first = server.engine_pid()
    if "--spare-process" in flags:
        server.spare_pid(beside=first)  # until then, all answers might be whole
    at, outcomes = asyncio.run(under_load(server, lambda: disrupt(server, first)))
    assert server.engine_pid() != first
    after = httpx.get(f"{server.url}/v1/runtime_config").json()
    assert after == expected | change
    return server, at, outcomes


def check(server, at, outcomes):
    latest = max(outcome.ended for outcome in outcomes) - at
    print("the last answer was complete", latest, "s after the engine process was lost")
    assert {outcome.kind for outcome in outcomes} == {"whole"}
    assert latest < LATEST_SECONDS
    seen = server.metrics()
    assert seen["inflight_engine_restarts_total"] == 1
    assert seen["inflight_requests_resubmitted_total"] >= NUM_CLIENTS - 8
    assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (0, 0)
    assert server.status("/ready") == 200
    undisturbed = asyncio.run(ask_all(server))
    assert [outcome.tokens for outcome in outcomes] == [outcome.tokens for outcome in undisturbed]


def test_killed_engine_process_costs_no_request_and_changes_no_token(own_server, tmp_path):
    server, at, outcomes = disrupted_server(own_server, signal.SIGKILL, "--record", str(tmp_path / "run.jsonl.gz"))
    check(server, at, outcomes)
    answer = httpx.get(f"{server.url}/admin/record", headers={"authorization": "Bearer test-token"})
    assert "run.restart-1.jsonl.gz" in answer.headers["content-disposition"]
    for name in ("run.jsonl.gz", "run.restart-1.jsonl.gz"):
        assert (tmp_path / name).stat().st_size > 0
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_stopped_engine_process_is_ended_and_costs_no_request(own_server):
    server, at, outcomes = disrupted_server(own_server, signal.SIGSTOP)
    check(server, at, outcomes)


def test_engine_process_that_is_killed_while_blocks_go_to_host_memory_and_back_changes_no_token(own_server):
    """The new one begins with nothing in host memory."""
    small = "--block-size 4 --num-kv-blocks 16 --swap-space 64Mi --preemption swap"
    server, at, outcomes = disrupted_server(own_server, signal.SIGKILL, *small.split())
    check(server, at, outcomes)
    text = httpx.get(server.url + "/metrics").text
    found = re.findall(r'^(inflight_tier_\w+)\{.*tier="host".*\} (\S+)$', text, re.M)
    counts = {name: float(value) for name, value in found}
    assert counts["inflight_tier_hit_blocks_total"] > 0
    assert counts["inflight_tier_failed_blocks_total"] == 0


def test_spare_takes_over_from_an_engine_process_that_is_killed_and_another_spare_is_started(own_server):
    spares = []

    def disrupt(server, engine):
        spares.append(server.spare_pid(beside=engine))
        os.kill(engine, signal.SIGKILL)

    server, at, outcomes = disrupted(own_server, disrupt, "--spare-process", "on")
    check(server, at, outcomes)
    engine = server.engine_pid()
    assert engine == spares[0]
    assert server.spare_pid(beside=engine) != engine
    page = httpx.get(server.url + "/metrics").text
    assert re.search(r'inflight_process_resident_memory_bytes\{.*process="spare"', page)


def test_next_engine_process_maps_the_weights_of_the_killed_one(own_server):
    server, at, outcomes = disrupted_server(own_server, signal.SIGKILL, "--keep-weights", "on")
    check(server, at, outcomes)
    lines = Path(f"/proc/{server.engine_pid()}/maps").read_text().splitlines()
    (mapped,) = [line.split()[1] for line in lines if "memfd:inflight-weights" in line]
    assert mapped == "r--s"


def test_spare_that_is_killed_is_replaced(own_server):
    server = own_server("--spare-process", "on")
    engine = server.engine_pid()
    first = server.spare_pid(beside=engine)
    os.kill(first, signal.SIGKILL)
    assert server.wait_for(lambda: server.spare_pid(beside=engine) != first)


def test_engine_process_and_spare_that_are_killed_together_cost_no_request(own_server):
    def disrupt(server, engine):
        for pid in (server.spare_pid(beside=engine), engine):
            os.kill(pid, signal.SIGKILL)

    check(*disrupted(own_server, disrupt, "--spare-process", "on"))


def test_spare_that_is_killed_while_it_takes_over_costs_no_request(own_server):
    def disrupt(server, engine):
        spare = server.spare_pid(beside=engine)
        os.kill(spare, signal.SIGSTOP)  # so that it does not load the model
        os.kill(engine, signal.SIGKILL)
        server.wait_for(lambda: "the lost engine process was killed" in server.log.read_text())
        time.sleep(0.5)
        os.kill(spare, signal.SIGKILL)

    server, at, outcomes = disrupted(own_server, disrupt, "--spare-process", "on")
    check(server, at, outcomes)
    assert "while it took over" in server.log.read_text()


def test_spare_that_gets_no_cpu_to_import_its_modules_is_not_waited_for(own_server):
    server = own_server("--spare-process", "on")
    engine = server.engine_pid()
    (spare,) = server.wait_for(lambda: server.spares(engine))
    os.kill(spare, signal.SIGSTOP)  # as where others keep the CPUs busy: it has the lowest priority
    os.kill(engine, signal.SIGKILL)
    body = {"prompt": "Once upon a time", "max_tokens": 4}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=LATEST_SECONDS).status_code == 200
    assert "the spare engine process has not imported its modules" in server.log.read_text()


def test_engine_of_several_processes_is_replaced_with_all_of_them(own_server):
    server = own_server("--tensor-parallel-size", "3", "--dtype", "float32")
    ranks = children(server.engine_pid())
    assert len(ranks) == 2
    with httpx.Client(base_url=server.url, timeout=120) as http:
        body = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        before = http.post("/v1/completions", json=body).json()["choices"]
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert http.post("/v1/completions", json=body).json()["choices"] == before
    assert len(children(server.engine_pid())) == 2
    for pid in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def children(pid):
    """Children of all threads of a process: it may start another one from any."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
