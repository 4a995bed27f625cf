"""An engine process that dies or hangs: what is answered all the same, what fails and how, and what is shown
meanwhile. The engine is a stand-in that dies when the test says so; test_real_restart.py has the real one."""

import asyncio
import json
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.messages import EngineFailed, LongStep, Starting
from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason
from inflight_engine.server import run
from inflight_engine.server.engine import supervisor as supervising
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.session import KILL_GRACE_SECONDS, MOST_RESTARTS, WINDOW_SECONDS, Progress, Restarts
from inflight_engine.server.http.middleware import OpenResponses
from inflight_engine.server.lifecycle import Lifecycle
from inflight_engine.server.requests.phases import RequestPhase
from inflight_engine.server.telemetry.span_attributes import request_phases
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import Limits, LimitsInForce
from inflight_settings.scheduling import ServiceClass
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import READY, connect_engine, until
from tests.engine.server.test_requests import events, metrics, start

pytestmark = pytest.mark.usefixtures("virtual_clock")

TOKEN = {"authorization": "Bearer secret"}


async def die(fake, how=lambda engine: engine.die()):
    how(fake.engine)
    await until(lambda: fake.service.session.phase is not Phase.READY)


async def restart(fake):
    """Restarts like the supervisor, but with another fake engine."""
    fake.service.session.lost.clear()
    fake.engine = await connect_engine(fake.service)
    fake.engine.send(READY)
    await until(lambda: fake.service.session.phase is Phase.READY)


def error_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


@in_virtual_time
async def test_requests_without_a_token_are_answered_by_the_next_engine_process_in_their_order(make_fake):
    fake = await make_fake()
    calls = []
    for number, stream in enumerate((False, True, False)):
        calls.append(start(fake, prompt=f"prompt {number}", stream=stream))
        await until(lambda: len(fake.engine.requests) == len(calls))
    fake.engine.report(admitted=[(0, 0)], num_running=1)
    await until(lambda: fake.service.session.stats.num_running == 1)
    sent = [msgspec.structs.replace(each, announce_start=True) for each in fake.engine.requests.values()]
    await die(fake)
    await restart(fake)
    await until(lambda: len(fake.engine.requests) == 3)
    assert [*fake.engine.requests.values()] == sent
    for request_id in range(3):
        fake.engine.answer(request_id, "text", slot=request_id)
    first, second, third = [await call for call in calls]
    assert first.json()["choices"][0]["text"] == third.json()["choices"][0]["text"] == "text"
    assert events(second.text)[-1] == "[DONE]"
    seen = await metrics(fake)
    assert (seen["inflight_engine_restarts_total"], seen["inflight_requests_resubmitted_total"]) == (1, 3)
    assert seen["vllm:request_queue_time_seconds_count"] == seen["vllm:time_to_first_token_seconds_count"] == 3


@in_virtual_time
async def test_whole_answer_goes_on_with_the_tokens_that_it_has(make_fake):
    fake = await make_fake()
    call = start(fake, logprobs=None, stop=["zz"])
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 2)], tokens={2: ord("x")}, num_running=1)
    await until(lambda: fake.service.counts.generation_tokens)
    await die(fake)
    await restart(fake)
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].output_token_ids == np.array([ord("x")], np.int32).tobytes()
    fake.engine.answer(0, "abc", slot=1)
    answer = (await call).json()
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("xabc", 4)
    seen = await metrics(fake)
    assert seen["vllm:time_to_first_token_seconds_count"] == seen["vllm:e2e_request_latency_seconds_count"] == 1
    assert (seen["vllm:prompt_tokens_total"], seen["vllm:generation_tokens_total"]) == (5, 4)


@in_virtual_time
async def test_stream_that_has_begun_goes_on_without_a_gap_or_a_repeat(make_fake):
    fake = await make_fake()
    call = start(fake, stream=True, stop=["xy"], logprobs=0, stream_options={"include_usage": True})
    await until(lambda: fake.engine.requests)
    for token in b"abx":
        scores = [TokenLogprobs(0, -token / 10, [], [])]
        fake.engine.report(admitted=[(0, 0)] if token == ord("a") else (), tokens={0: token}, logprobs=scores)
    await until(lambda: fake.service.counts.generation_tokens == 3)
    for slot, text in ((2, "zcx"), (1, "y")):
        await die(fake)
        for generation in fake.service.registry.unfinished():
            generation.tries = 0  # it was in one crash, and not in both
        await restart(fake)
        await until(lambda: fake.engine.requests)
        count = fake.service.counts.generation_tokens + len(text)
        fake.engine.report(admitted=[(0, slot)])
        for token in text.encode():
            fake.engine.report(tokens={slot: token}, logprobs=[TokenLogprobs(slot, -token / 10, [], [])])
        await until(lambda count=count: fake.service.counts.generation_tokens == count)
    answer = await asyncio.wait_for(call, 60)
    *chunks, usage_chunk, done = events(answer.text)
    choices = [json.loads(each)["choices"][0] for each in chunks]
    assert "".join(choice["text"] for choice in choices) == "abxzc"
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    assert (tokens, choices[-1]["finish_reason"]) == (["a", "b", "x", "z", "c"], "stop")
    assert (json.loads(usage_chunk)["usage"]["completion_tokens"], done) == (7, "[DONE]")
    seen = await metrics(fake)
    assert seen["vllm:time_to_first_token_seconds_count"] == seen["vllm:request_queue_time_seconds_count"] == 1
    assert not fake.service.admission.waiting.num_requests


@in_virtual_time
async def test_request_that_was_in_two_crashes_is_refused_and_one_that_came_between_is_not(make_fake):
    fake = await make_fake()
    call = start(fake)
    await until(lambda: fake.engine.requests)
    await die(fake)
    between = start(fake)
    await restart(fake)
    await until(lambda: len(fake.engine.requests) == 2)
    assert [each.announce_start for each in fake.engine.requests.values()] == [True, False]
    fake.engine.send(Starting([0]))
    await until(lambda: any(each.phase is RequestPhase.STARTING for each in fake.service.registry.unfinished()))
    await die(fake)
    answer = await asyncio.wait_for(call, 60)
    assert error_of(answer) == (503, "engine_failed")
    assert int(answer.headers["retry-after"]) >= 1
    await restart(fake)
    await until(lambda: fake.engine.requests)
    fake.engine.answer(1, "x")
    assert (await between).status_code == 200


@in_virtual_time
async def test_request_that_waited_for_a_slot_in_every_crash_is_not_refused(make_fake):
    fake = await make_fake()
    calls = [start(fake, prompt=f"prompt {number}") for number in range(6)]
    await until(lambda: len(fake.engine.requests) == 6)
    for _ in range(2):
        fake.engine.report(admitted=[(0, 0)], num_running=1)
        await until(lambda: fake.service.session.stats.num_running == 1)
        await die(fake)
        await restart(fake)
    await until(lambda: len(fake.engine.requests) == 5)
    assert error_of(await calls[0]) == (503, "engine_failed")
    for request_id in range(1, 6):
        fake.engine.answer(request_id, "x")
    assert [(await call).status_code for call in calls[1:]] == [200] * 5


@in_virtual_time
async def test_while_it_restarts_new_requests_wait_in_the_same_bounded_queue(make_fake):
    fake = await make_fake(max_queued_requests=2)
    first = start(fake)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], num_running=1)
    await until(lambda: fake.service.session.stats.num_running == 1)
    await die(fake)
    second, third = start(fake), start(fake)
    ((refused,), waiting) = await asyncio.wait([second, third], return_when=asyncio.FIRST_COMPLETED)
    assert error_of(refused.result()) == (503, "queue_full")
    ready, health = await fake.http.get("/ready"), await fake.http.get("/health")
    assert (ready.status_code, ready.json()["status"]) == (503, "restarting")
    assert (health.status_code, health.json()["status"], health.json()["queue_size"]) == (200, "restarting", 2)
    seen = await metrics(fake)
    assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (0, 2)
    assert seen['inflight_class_requests_waiting{class="default"}'] == 2
    assert seen["inflight_waiting_prompt_tokens"] == 10
    await restart(fake)
    assert (await fake.http.get("/ready")).status_code == 200
    await until(lambda: len(fake.engine.requests) == 2)
    for request_id in fake.engine.requests:
        fake.engine.answer(request_id, "x")
    assert [(await call).status_code for call in (first, *waiting)] == [200, 200]
    await until(lambda: not len(fake.service.registry))
    assert (await metrics(fake))['inflight_class_requests_waiting{class="default"}'] == 0


@in_virtual_time
async def test_no_timeout_runs_while_it_restarts_and_the_queue_timeout_runs_anew_afterwards(make_fake):
    fake = await make_fake(queue_timeout=0.2, request_timeout=0.3)
    begun, waiting = start(fake, prompt="begun"), start(fake, prompt="waits")
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.report(admitted=[(0, 0)], tokens={0: ord("x")}, num_running=1)
    await until(lambda: fake.service.counts.generation_tokens)
    await die(fake)
    new = start(fake, prompt="came meanwhile")
    await until(lambda: len(fake.service.registry) == 3)
    await asyncio.sleep(0.5)
    await restart(fake)
    await until(lambda: len(fake.engine.requests) == 3)
    fake.engine.answer(0, "y", slot=0)
    fake.engine.answer(1, "z", slot=1)
    assert [(await call).status_code for call in (begun, waiting)] == [200, 200]
    assert error_of(await new) == (504, "queue_timeout")


@in_virtual_time
async def test_client_that_leaves_while_it_restarts_is_not_submitted_again(make_fake):
    fake = await make_fake()
    call = start(fake)
    await until(lambda: fake.engine.requests)
    await die(fake)
    call.cancel()
    await until(lambda: not len(fake.service.registry))
    await restart(fake)
    assert not fake.engine.requests
    assert not fake.engine.cancels


@in_virtual_time
async def test_limits_and_weights_in_force_are_put_in_force_before_any_request(make_fake, monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")
    fake = await make_fake(engine=EngineConfig("fake", classes=(ServiceClass("a", 4.0), ServiceClass("b"))))
    change = {"max_num_seqs": 2, "revision": 7, "class_weights": {"b": 3}}
    before = (await fake.http.patch("/v1/runtime_config", json=change, headers=TOKEN)).json()
    call = start(fake)
    await until(lambda: fake.engine.requests)
    await die(fake)
    refused = await fake.http.patch("/v1/runtime_config", json={"max_num_seqs": 3}, headers=TOKEN)
    assert error_of(refused) == (503, "engine_failed")
    order = []
    link = fake.service.session.link
    send = link.send
    link.send = lambda *messages: (order.extend(type(each).__name__ for each in messages), send(*messages))
    await restart(fake)
    await until(lambda: fake.engine.requests)
    assert order == ["Configure", "AddRequest"]
    assert fake.engine.configurations == [(LimitsInForce(Limits(2, 64), 7), {"a": 4.0, "b": 3.0})]
    assert (await fake.http.get("/v1/runtime_config")).json() == before
    text = (await fake.http.get("/metrics")).text
    assert 'inflight_runtime_config_revision{model_name="fake"} 7.0' in text
    assert (await fake.http.patch("/v1/runtime_config", json={"max_num_seqs": 3}, headers=TOKEN)).status_code == 200
    fake.engine.answer(0, "x")
    await call


@in_virtual_time
async def test_change_under_way_when_the_engine_dies_is_503_and_changes_nothing(make_fake, monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")
    fake = await make_fake()
    fake.engine.answering = False
    call = asyncio.create_task(fake.http.patch("/v1/runtime_config", json={"max_num_seqs": 2}, headers=TOKEN))
    await until(lambda: fake.engine.configurations)
    await die(fake)
    assert error_of(await call) == (503, "engine_failed")
    await restart(fake)
    assert fake.service.session.runtime.limits.max_num_seqs == 4


@in_virtual_time
async def test_counters_of_the_engine_process_go_on(make_fake):
    fake = await make_fake()
    for restarts in range(2):
        fake.engine.report(num_preemptions=3, prefix_queries=100, prefix_hits=40)
        await until(lambda: fake.service.session.stats.prefix_hits)
        assert (await metrics(fake))["vllm:prefix_cache_hits_total"] == 40 * (restarts + 1)
        await die(fake)
        seen = await metrics(fake)
        assert seen["vllm:num_preemptions_total"] == 3 * (restarts + 1)
        assert seen["vllm:prefix_cache_queries_total"] == 100 * (restarts + 1)
        await restart(fake)


@in_virtual_time
async def test_engine_that_gives_up_with_a_reason_is_restarted_too(make_fake):
    fake = await make_fake()
    await die(fake, lambda engine: engine.send(EngineFailed("a step failed: illegal memory access")))
    assert fake.service.session.phase is Phase.RESTARTING
    assert fake.service.session.lost.is_set()


@in_virtual_time
async def test_too_many_restarts_or_a_death_while_loading_again_fail_the_server(make_fake):
    fake = await make_fake()
    for _ in range(MOST_RESTARTS):
        await die(fake)
        await restart(fake)
    call = start(fake)
    await until(lambda: fake.engine.requests)
    await die(fake)
    assert (fake.service.session.phase, fake.service.session.failed_while) == (Phase.FAILED, Phase.READY)
    assert (await fake.http.get("/health")).status_code == 503
    assert (await fake.http.get("/ready")).json()["status"] == "failed"
    refused = await start(fake)
    assert error_of(refused) == (503, "engine_failed")
    call.cancel()

    fake = await make_fake()
    await die(fake)
    (await connect_engine(fake.service)).die()
    await until(lambda: fake.service.session.phase is Phase.FAILED)
    assert fake.service.session.failed_while is Phase.RESTARTING


@in_virtual_time
async def test_what_a_lost_engine_still_says_is_not_heard(make_fake):
    fake = await make_fake()
    call = start(fake)
    await until(lambda: fake.engine.requests)
    lost = fake.engine
    fake.service.session.lose("hung")
    lost.report(admitted=[(0, 0)], tokens={0: 97}, num_running=1)
    await restart(fake)
    await until(lambda: fake.engine.requests)
    assert fake.service.session.stats.num_running == 0
    fake.engine.answer(0, "b")
    assert (await call).json()["choices"][0]["text"] == "b"


@given(st.lists(st.floats(0, 400), max_size=60))
def test_restarts_are_bounded_in_any_window(gaps):
    restarts, now, begun = Restarts(), 0.0, []
    for gap in gaps:
        now += gap
        recent = [then for then in begun if now - then < WINDOW_SECONDS]
        assert restarts.begin(now) is (len(recent) < MOST_RESTARTS)
        if len(recent) < MOST_RESTARTS:
            begun.append(now)


class TestProgress:
    def test_short_steps_have_five_seconds(self):
        progress = Progress(10.0)
        assert progress.overdue(14.9) < 0 < progress.overdue(15.1)
        progress.reported(3, 15.0)
        assert progress.overdue(19.9) < 0

    def test_announced_step_has_its_time_until_it_or_a_later_one_is_reported(self):
        progress = Progress(0.0)
        progress.announced(LongStep(4, 60.0), 1.0)
        progress.reported(3, 2.0)  # the one before, where steps overlap
        progress.reported(-1, 3.0)
        assert progress.overdue(62.9) < 0 < progress.overdue(63.1)
        progress.reported(4, 4.0)
        assert progress.overdue(9.1) > 0

    def test_step_announced_while_an_earlier_one_is_open_does_not_shorten_its_time(self):
        progress = Progress(0.0)
        progress.announced(LongStep(4, 60.0), 1.0)
        progress.announced(LongStep(5, 10.0), 2.0)
        assert progress.overdue(60.9) < 0 < progress.overdue(61.1)
        progress.reported(4, 50.0)
        assert progress.overdue(59.9) < 0 < progress.overdue(60.1)
        progress.reported(5, 55.0)
        assert progress.overdue(59.9) < 0 < progress.overdue(60.1)

    def test_answer_between_two_steps_does_not_shorten_the_time_of_an_open_one(self):
        progress = Progress(0.0)
        progress.announced(LongStep(4, 60.0), 1.0)
        progress.made(2.0)
        assert progress.overdue(60.9) < 0

    def test_time_in_which_this_process_did_not_run_is_not_the_engines(self):
        progress = Progress(0.0)
        progress.excuse(100.0)
        assert progress.overdue(104.9) < 0


@in_virtual_time
async def test_stalled_engine_is_unready_and_unhealthy_and_requests_in_flight_stay(make_fake):
    fake = await make_fake()
    fake.service.session.progress = Progress(time.monotonic() - 100)
    assert (await fake.http.get("/ready")).status_code == 200  # it has nothing to do
    call = start(fake)
    await until(lambda: fake.engine.requests)
    assert (await fake.http.get("/ready")).status_code == 200  # since just now
    fake.service.session.progress = Progress(time.monotonic() - 5.1)
    ready, health = await fake.http.get("/ready"), await fake.http.get("/health")
    assert (ready.status_code, ready.json()["status"]) == (503, "stalled")
    assert (health.status_code, health.json()["status"]) == (503, "stalled")
    assert not fake.service.session.hung
    fake.service.session.progress = Progress(time.monotonic() - 5.1 - KILL_GRACE_SECONDS)
    assert fake.service.session.hung
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200
    assert (await fake.http.get("/ready")).status_code == 200


@in_virtual_time
async def test_change_that_an_idle_engine_does_not_answer_shows_that_it_hangs(make_fake, monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")
    fake = await make_fake()
    fake.engine.answering = False
    call = asyncio.create_task(fake.http.patch("/v1/runtime_config", json={"max_num_seqs": 2}, headers=TOKEN))
    await until(lambda: fake.engine.configurations)
    assert not fake.service.session.stalled
    fake.service.session.progress = Progress(time.monotonic() - 6)
    assert fake.service.session.stalled
    call.cancel()


@in_virtual_time
async def test_admin_call_is_answered_at_once_when_the_engine_was_told_to_leave(make_fake, monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")
    fake = await make_fake()
    fake.engine.answering = False
    change = {"json": {"max_num_seqs": 2}, "headers": TOKEN}
    under_way = asyncio.create_task(fake.http.patch("/v1/runtime_config", **change))
    await until(lambda: fake.engine.configurations)
    fake.service.session.shut_down()
    assert error_of(await asyncio.wait_for(under_way, 20)) == (503, "draining")
    assert error_of(await asyncio.wait_for(fake.http.patch("/v1/runtime_config", **change), 20)) == (503, "draining")


class FakeServer:
    """A stand-in for an HTTP server that ends once all are told to."""

    should_exit = False

    def __init__(self, all_told):
        self.all_told = all_told

    async def serve(self):
        await until(lambda: self.should_exit)
        await self.all_told.wait()


@in_virtual_time
async def test_both_ports_close_at_the_same_time():
    all_told = asyncio.Barrier(2)
    servers = [FakeServer(all_told), FakeServer(all_told)]
    async with asyncio.timeout(60):
        await run.close([(server, asyncio.create_task(server.serve())) for server in servers])


class FakeProcess:
    """A stand-in for `EngineProcess`: what was done to it, and to its successors."""

    def __init__(self, log):
        self.log, self.started, self.socket = log, time.monotonic(), object()

    def kill(self):
        self.log.append("kill")

    def successor(self, *, spare=False):
        self.log.append("start spare" if spare else "start")
        return FakeProcess(self.log)

    def load(self, config):
        self.log.append(config.record)

    def wait(self, timeout):
        return -9

    def imported(self, timeout):
        return True


async def supervised(fake, monkeypatch):
    log = []
    monkeypatch.setattr(supervising, "CHECK_SECONDS", 0.02)

    async def connect(sock):
        log.append("connect")

    monkeypatch.setattr(fake.service.session.link, "connect", connect)
    process = FakeProcess(log)
    lifecycle = Lifecycle(fake.service, process, OpenResponses())

    async def loaded():
        pass

    monkeypatch.setattr(lifecycle, "_load", loaded)
    return lifecycle, log


@in_virtual_time
async def test_hung_engine_is_killed_and_another_started_and_the_recording_goes_on_in_a_new_file(
    make_fake, monkeypatch, tmp_path
):
    record = tmp_path / "run.jsonl.gz"
    fake = await make_fake(engine=EngineConfig("fake", record=str(record)))
    lifecycle, log = await supervised(fake, monkeypatch)
    running = asyncio.create_task(lifecycle._supervisor.run())
    call = start(fake)
    await until(lambda: fake.engine.requests)
    fake.service.session.progress = Progress(time.monotonic() - 5.1 - KILL_GRACE_SECONDS)
    await until(lambda: log)
    await until(lambda: "connect" in log)
    second = str(tmp_path / "run.restart-1.jsonl.gz")
    assert log == ["kill", "start", second, "connect"]
    assert str(fake.service.session.record) == second
    assert not call.done()
    running.cancel()
    call.cancel()


@in_virtual_time
async def test_engine_is_not_taken_for_hung_because_this_process_did_not_run(make_fake, monkeypatch):
    fake = await make_fake()
    lifecycle, log = await supervised(fake, monkeypatch)
    call = start(fake)
    await until(lambda: fake.engine.requests)
    running = asyncio.create_task(lifecycle._supervisor.run())
    await asyncio.sleep(0.05)
    fake.service.session.progress = Progress(time.monotonic() - 5.0 - KILL_GRACE_SECONDS + 0.5)
    asyncio.get_running_loop().now += 1.0  # the whole process stands still
    await asyncio.sleep(0.1)
    assert not log
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200
    running.cancel()


@in_virtual_time
async def test_restart_that_takes_too_long_fails_the_server(make_fake, monkeypatch):
    monkeypatch.setattr(supervising, "LEAST_RESTART_SECONDS", 0.1)
    fake = await make_fake()
    lifecycle, log = await supervised(fake, monkeypatch)
    call = start(fake)
    await until(lambda: fake.engine.requests)
    running = asyncio.create_task(lifecycle.run())
    fake.engine.die()
    assert "not ready in time" in await asyncio.wait_for(running, 60)
    assert log[:2] == ["kill", "start"]
    assert log[-1] == "kill"
    assert error_of(await call) == (503, "engine_failed")


@in_virtual_time
async def test_restart_has_its_whole_time_also_where_the_watch_sees_it_before_it_has_begun(make_fake, monkeypatch):
    fake = await make_fake()
    lifecycle, _ = await supervised(fake, monkeypatch)
    watching = asyncio.create_task(lifecycle._supervisor._watch())
    await die(fake)
    await asyncio.sleep(0.1)
    assert fake.service.session.phase is Phase.RESTARTING
    watching.cancel()


@in_virtual_time
async def test_restart_that_fails_in_any_way_ends_the_server_with_the_reason(make_fake, monkeypatch):
    fake = await make_fake()
    lifecycle, _ = await supervised(fake, monkeypatch)

    def broken(process):
        raise ValueError("no such thing")

    monkeypatch.setattr(FakeProcess, "successor", broken)
    running = asyncio.create_task(lifecycle.run())
    fake.engine.die()
    assert await asyncio.wait_for(running, 60) == "another engine process cannot be started: no such thing"


@in_virtual_time
async def test_drain_while_it_restarts_takes_requests_for_the_drain_delay_too(make_fake, monkeypatch):
    fake = await make_fake(drain_delay=300.0)
    lifecycle, _ = await supervised(fake, monkeypatch)
    await die(fake)
    running = asyncio.create_task(lifecycle.run())
    lifecycle.drain()
    await asyncio.sleep(0.05)
    call = start(fake)
    await until(lambda: len(fake.service.registry))
    lifecycle.signal()  # the second one ends at once
    assert error_of(await asyncio.wait_for(call, 60)) == (503, "shutdown")
    await running


@in_virtual_time
async def test_engine_that_dies_too_often_ends_the_server_with_the_reason(make_fake, monkeypatch):
    fake = await make_fake()
    lifecycle, _ = await supervised(fake, monkeypatch)
    for _ in range(MOST_RESTARTS):
        fake.service.session._restarts.begin(time.monotonic())
    running = asyncio.create_task(lifecycle.run())
    fake.engine.die()
    why = await asyncio.wait_for(running, 60)
    assert why.startswith("the engine process was killed (signal 9")
    assert "3 restarts in 10 minutes" in why


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_all_choices_of_a_call_are_answered_or_the_call_fails(make_fake, stream):
    fake = await make_fake()
    call = start(fake, stream=stream, n=2)
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.report(admitted=[(0, 0), (1, 1)], tokens={0: ord("a")}, num_running=2)
    fake.engine.report(finished=[(0, FinishReason.LENGTH)], num_running=1)
    await until(lambda: len(fake.service.registry) == 1)
    if stream:
        await asyncio.sleep(0.05)
    await die(fake)
    await restart(fake)
    await until(lambda: fake.engine.requests)
    assert [*fake.engine.requests] == [1]
    fake.engine.answer(1, "b")
    answer = await call
    if stream:
        assert events(answer.text)[-1] == "[DONE]"
    else:
        assert [choice["text"] for choice in answer.json()["choices"]] == ["a", "b"]


@in_virtual_time
async def test_the_wait_for_another_engine_process_is_a_preemption_in_the_trace(make_fake):
    fake = await make_fake()
    call = start(fake, stream=True)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], tokens={0: ord("a")})
    await until(lambda: fake.service.counts.generation_tokens)
    (generation,) = fake.service.registry.unfinished()
    await die(fake)
    await restart(fake)
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "bc", slot=3)
    await call
    phases = [phase.name for phase in request_phases(generation, time.monotonic())]
    assert phases == ["queue", "prefill", "decode", "preempted", "prefill", "decode"]
    assert generation.time_per_output_token is not None
