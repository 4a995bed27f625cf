"""The measurements that the comparison of simulation and engine rests on; the engine is a stand-in here."""

import asyncio
import json
import random
import sys
from dataclasses import replace

import numpy as np
import pytest

from inflight_cost.model import StepWork
from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import Request, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_work import work_of
from inflight_settings.limits import Limits
from inflight_simulator.cost import LLAMA_8B_H100
from tests.standin import served
from tools.bench import simulator
from tools.load.trace_load import Job, Measured, run_load

COST = replace(LLAMA_8B_H100, base_s=0.02, decode_seq_s=0.004, prefill_token_s=0.001, decode_kv_token_s=1e-6)
CONFIG = SchedulerConfig(Limits(16, 128), num_blocks=400, block_size=16, max_model_len=1024)
FIRST_TOKEN_SECONDS = 0.05


class Server:
    """A stand-in for the engine: streams one chunk for each token, then their number, and what `end` says."""

    def __init__(self, status=200, end=b"data: [DONE]\n\n", lacks=0):
        self.status, self.end, self.lacks, self.bodies = status, end, lacks, []

    async def respond(self, request, to):
        body = json.loads(request.body)
        self.bodies.append(body)
        if self.status != 200:
            to.whole(b"", status=b"%d X" % self.status)
            return
        to.begin(progress=False)
        await asyncio.sleep(FIRST_TOKEN_SECONDS)
        for number in range(body["max_tokens"]):
            end = b'"length"' if number + 1 == body["max_tokens"] else b"null"
            to.send(b'data: {"choices": [{"text": "a", "finish_reason": %s}]}\n\n' % end)
        tokens = body["max_tokens"] - self.lacks
        to.send(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % tokens + self.end)
        to.end()


async def test_each_request_is_sent_at_its_time_with_exact_lengths_and_measured_from_then():
    server = Server()
    jobs = [Job(0.0, 5, 3), Job(0.3, 7, 1)]
    async with served(server.respond) as url:
        measured = await run_load(url, jobs, vocab_size=100)
    assert [each.job for each in measured] == jobs
    assert [(len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) for body in server.bodies] == [
        (5, 3, True),
        (7, 1, True),
    ]
    assert server.bodies[0]["prompt"] != server.bodies[1]["prompt"][:5]
    for each in measured:
        assert each.ttft >= FIRST_TOKEN_SECONDS
        assert each.first_token_at <= each.last_token_at
    assert measured[1].first_token_at > 0.3
    assert measured[1].tpot is None


@pytest.mark.parametrize(
    ("server", "says"),
    [(Server(503), "answers 503"), (Server(end=b""), "in the middle"), (Server(lacks=1), "has 2 tokens, not 3")],
)
async def test_an_answer_that_is_not_whole_fails_the_load(server, says):
    async with served(server.respond) as url:
        with pytest.raises(ExceptionGroup) as error:
            await run_load(url, [Job(0.0, 5, 3)], vocab_size=100)
    assert says in str(error.value.exceptions[0])


def test_figures_are_those_of_the_definitions():
    jobs = [Job(1.0, 10, 1), Job(2.0, 10, 5)]
    measured = [Measured(jobs[0], 1.5, 1.5), Measured(jobs[1], 3.5, 5.5)]
    assert simulator.figures(measured) == pytest.approx(
        {
            "TTFT p50, s": 1.0,
            "TTFT p95, s": 1.45,
            "TPOT p50, s": 0.5,
            "TPOT p95, s": 0.5,
            "throughput, tokens/s": 6 / 4.5,
        }
    )


def record(path, jobs):
    """Runs the jobs on a virtual clock in which each step takes what COST says; returns what their clients saw."""
    scheduler = Scheduler(CONFIG)
    recorder = Recorder.to_file(str(path), CONFIG, scheduler.is_cached)
    first, last, slot_of, known = {}, {}, {}, {}
    waiting, now = list(enumerate(jobs)), 0.0
    while waiting or scheduler.has_work:
        while waiting and waiting[0][1].at <= now:
            number, job = waiting.pop(0)
            prompt = np.full(job.prompt_tokens, number, np.int32)
            request = Request(number, prompt, SamplingParams(max_tokens=job.output_tokens), now)
            scheduler.add(request)
            recorder.added(request)
        plan = scheduler.schedule()
        if plan is None:
            now = waiting[0][1].at
            continue
        for start in plan.starts:
            slot_of[start.slot], known[start.slot] = start.request_id, len(start.token_ids)
        decodes = plan.decode_slots.tolist()
        prefill = plan.num_tokens - len(decodes)
        seconds = COST.seconds(StepWork(len(decodes), prefill, sum(known[slot] for slot in decodes), 0, 0))
        now += seconds
        for slot in plan.sampled_slots.tolist():
            known[slot] += 1
            first.setdefault(slot_of[slot], now)
            last[slot_of[slot]] = now
        work = work_of(plan, scheduler.num_attended_tokens, CONFIG.block_size)
        ended = scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
        recorder.stepped(plan, work, ended, seconds)
    recorder.close()
    return [Measured(job, first[number], last[number]) for number, job in enumerate(jobs)]


@pytest.fixture
def folder(tmp_path):
    rng = random.Random(0)
    record(tmp_path / "calibration.jsonl.gz", simulator.calibration_jobs(rng))
    jobs = [Job(0.4 * number, rng.randint(8, 300), rng.randint(2, 60)) for number in range(150)]
    simulator.write_measured(tmp_path / "trace.csv", record(tmp_path / "trace.jsonl.gz", jobs))
    return tmp_path


def report(monkeypatch, folder):
    monkeypatch.setattr(sys, "argv", ["simulator", "--folder", str(folder), "--report", "--compare", "0.5"])
    return simulator.main()


def test_an_engine_that_takes_what_the_fit_says_is_simulated_without_error(monkeypatch, capsys, folder):
    assert report(monkeypatch, folder) == 0
    printed = capsys.readouterr().out
    assert "75 requests of the first 0.5 minutes" in printed
    rows = [line for line in printed.splitlines() if line.startswith(("TTFT", "TPOT", "throughput"))]
    errors = [float(row.split()[-1].rstrip("%")) for row in rows]
    assert len(errors) == 5
    assert max(map(abs, errors)) < 1
    assert "no difference" in printed


def test_an_engine_that_was_slower_than_its_calibration_fails_the_goal(monkeypatch, folder):
    measured = simulator.read_measured(folder / "trace.csv")
    slower = [
        Measured(job, job.at + 1.5 * (first - job.at), last + 0.5 * (last - job.at)) for job, first, last in measured
    ]
    simulator.write_measured(folder / "trace.csv", slower)
    assert report(monkeypatch, folder) == 1
