"""The autopilot's benchmark: its traffic, its figures, its tables, and the operator's rounds on an engine."""

import asyncio
import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.engines import EngineType
from inflight_kubectl.load.client import Client
from inflight_operator.observe.metrics import parse_metrics
from inflight_settings.limits import Limits, LimitsInForce
from tests.standin import served
from tools.bench.autopilot import measure, options, report
from tools.bench.autopilot.engine import Engine, _pod
from tools.bench.autopilot.figures import Targets, goodput, latencies, seconds_until_near
from tools.bench.autopilot.kept import Kept, kept
from tools.bench.autopilot.load import CARRIED, SPARE, found_load
from tools.bench.autopilot.pilot import Change, Pilot
from tools.bench.autopilot.report import Fixed, PilotRun, Report
from tools.bench.autopilot.traffic import Answer, Sender, Slice, trace_slice
from tools.load.trace_load import Job

TARGETS = Targets(ttft=1.0, tpot=0.05)
QUARTERS = st.integers(0, 200).map(lambda number: number / 4)


def good(at):
    return Answer(at, 0.5, 0.04, whole=True)


def late(at):
    return Answer(at, 1.5, 0.04, whole=True)


def test_a_request_counts_when_it_is_whole_and_keeps_both_targets():
    assert TARGETS.kept(good(0.0))
    assert TARGETS.kept(Answer(0.0, 1.0, None, whole=True))
    for missed in (
        late(0.0),
        Answer(0.0, 0.5, 0.06, whole=True),
        Answer(0.0, 0.5, None, whole=False),
        Answer(0.0, None, None, whole=False),
    ):
        assert not TARGETS.kept(missed)


def test_goodput_is_of_the_requests_that_were_due_in_the_time():
    answers = [good(0.0), good(1.0), late(2.0), good(4.0)]
    assert goodput(answers, TARGETS, 0.0, 4.0) == 2 / 4
    assert goodput(answers, TARGETS, 1.0, 5.0) == 2 / 4


def test_near_is_the_begin_of_the_first_whole_window_that_is_good_enough():
    answers = [late(t / 2) for t in range(20)] + [good(10 + t / 2) for t in range(40)]
    assert seconds_until_near(answers, TARGETS, 2.0, 5.0, 0.0, 30.0) == 10.0
    assert seconds_until_near(answers, TARGETS, 2.0, 5.0, 12.0, 30.0) == 0.0
    assert seconds_until_near(answers, TARGETS, 2.2, 5.0, 0.0, 30.0) is None
    # A window that reaches over the end is none.
    assert seconds_until_near(answers, TARGETS, 2.0, 5.0, 0.0, 14.0) is None


def test_a_request_without_a_first_token_is_endless():
    assert latencies([good(0.0), Answer(1.0, None, None, whole=False)], 0.0, 2.0) == (float("inf"), 0.04)


def test_without_requests_there_are_no_latencies():
    assert latencies([], 0.0, 2.0) == (None, None)


@given(start=QUARTERS, length=QUARTERS)
def test_every_window_of_a_repeated_slice_has_each_of_its_requests_once(start, length):
    part = Slice(tuple(Job(at, number, 1) for number, at in enumerate((0.0, 1.5, 7.0, 9.75))), 10.0)
    inside = [job.prompt_tokens for job in part.repeated(start, start + 10.0)]
    assert sorted(inside) == [0, 1, 2, 3]
    times = [job.at for job in part.repeated(start, start + length)]
    assert times == sorted(times)
    assert all(start <= at < start + length for at in times)


def test_a_slice_of_the_trace_fills_its_time_at_the_asked_rate():
    part = trace_slice(measure.SHAPES[1], 60, 12.0, measure.MOST_PROMPT)
    assert part.rate == 5.0
    assert part.jobs[0].at == 0.0
    assert part.jobs[-1].at < 12.0
    prompt, output = part.mean_tokens
    assert prompt > 3 * trace_slice(measure.SHAPES[0], 60, 12.0, measure.MOST_PROMPT).mean_tokens[0]
    assert output > 1
    assert max(job.prompt_tokens for job in part.jobs) <= measure.MOST_PROMPT


def test_the_default_run_has_twelve_settings_and_all_are_within_the_capacity():
    default, quick = options.parse([]), options.parse(["--quick", "--tpot", "0.1"])
    assert len(default.settings) >= 12 > len(quick.settings)
    assert quick.targets == Targets(1.0, 0.1)
    for limits in (*default.settings, *quick.settings, *measure.STARTS.values()):
        assert limits.at_most(measure.CAPACITY) == limits
    with pytest.raises(SystemExit):
        options.parse(["--only", "autopilot"])


def a_report():
    part = Slice((Job(0.0, 8, 4), Job(5.0, 8, 4)), 10.0)
    fixed = (Fixed(Limits(4, 96), 0.1, 0.2), Fixed(Limits(32, 384), 0.2, 0.1))
    answers = (late(0.0), late(5.0), good(10.0), good(15.0), good(20.0), good(25.0))
    change = Change(9.0, Limits(32, 400), "why")
    run = PilotRun("too few slots", 0, 0, Limits(2, 512), Limits(32, 400), answers, (change,), 0.0, 30.0)
    return Report(TARGETS, (part, part), fixed, (run,), 10.0)


def test_the_tables_show_the_best_setting_and_the_autopilot_against_each():
    found = a_report()
    assert found.until_near(found.runs[0]) == 6.0
    lines = report.text(found).splitlines()
    assert lines[1].endswith("the best fixed setting keeps 100%, and 1 of 2 keep less than 80%.")
    assert [line.split() for line in lines if line.split()[:1] in (["4"], ["32"])] == [
        ["4", "96", "0.10", "0.20*", "133%"],
        ["32", "384", "0.20*", "0.10", "67%"],
    ]
    assert lines[-1].split() == ["too", "few", "slots", "1", "6", "s", "67%", "100%", "no"]
    assert lines[-5].split() == (
        ["too", "few", "slots", "2/512", "32/400", "1", "6", "s", "0.13", "67%", "100%", "500", "ms", "40", "ms"]
    )
    assert json.loads(json.dumps(report.as_json(found)))["runs"][0]["changes"][0]["at"] == 9.0


@given(
    capacity=st.floats(30, 2000),
    off=st.floats(0.5, 2.0),
    steep=st.floats(1.0, 10.0),
)
def test_the_search_finds_a_load_a_little_below_the_highest_that_is_carried(capacity, off, steep):
    """Requests up to the capacity are kept; beyond it, those that the engine has the time for, or fewer."""
    asked = []

    async def kept_share(requests):
        asked.append(requests)
        return min(1.0, (capacity / requests) ** steep)

    found = asyncio.run(found_load(round(capacity * off), kept_share))
    highest = capacity / CARRIED ** (1 / steep)
    assert 0.85 * SPARE * highest - 2 <= found <= SPARE * highest
    assert len(asked) <= 18


@given(shares=st.lists(st.floats(0, 1), min_size=18, max_size=18), first=st.integers(0, 50))
def test_a_load_that_was_carried_once_and_not_again_is_too_high(shares, first):
    asked, measured = [], iter(shares)

    async def kept_share(requests):
        asked.append((requests, next(measured)))
        return asked[-1][1]

    found = asyncio.run(found_load(first, kept_share))
    twice = [one for (one, share), (other, again) in pairwise(asked) if one == other and min(share, again) >= CARRIED]
    assert 1 <= found <= max(1.0, SPARE * max(twice, default=min(one for one, _ in asked)))


def test_what_was_kept_is_read_again_and_only_under_the_same_conditions(tmp_path):
    run = a_report().runs[0]
    first = Kept({"ttft": 1.0}, tmp_path / "kept.json", [20], {(1, Limits(4, 96)): [1.5, 2.5]}, [run])
    first.save()
    assert kept(first.file, {"ttft": 1.0}) == first
    assert kept(tmp_path / "none.json", {"ttft": 1.0}) == Kept({"ttft": 1.0}, tmp_path / "none.json")
    with pytest.raises(ValueError, match="take another file"):
        kept(first.file, {"ttft": 2.0})


def test_the_best_setting_is_one_that_was_measured_over_more_than_one_window():
    results = Kept({}, None, [], {(0, Limits(4, 96)): [3.0], (0, Limits(12, 96)): [2.0], (1, Limits(4, 96)): [9.0]})
    assert measure._unconfirmed(results, 0) == Limits(4, 96)
    results.fixed[0, Limits(4, 96)] = [1.0, 1.5]
    assert measure._unconfirmed(results, 0) == Limits(12, 96)
    results.fixed[0, Limits(12, 96)] = [2.0, 2.0]
    assert measure._unconfirmed(results, 0) is None


def event(content):
    return f"data: {json.dumps(content)}\n\n".encode()


async def test_the_client_measures_what_it_waits_for_and_gives_up_in_time():
    """The engine of this test answers three tokens, 50 ms apart; it refuses prompts of 2 and hangs on prompts of 3."""

    async def respond(request, to):
        prompt = json.loads(request.body)["prompt"]
        if len(prompt) == 2:
            to.whole(b"", status=b"503 X")
            return
        to.begin(progress=False)
        if len(prompt) == 3:
            return
        for end in (None, None, "length"):
            await asyncio.sleep(0.05)
            to.send(event({"choices": [{"text": "a", "finish_reason": end}]}))
        to.send(event({"choices": [], "usage": {"completion_tokens": 3}}) + b"data: [DONE]\n\n")
        to.end()

    async with served(respond) as url, Client(url) as client:
        began = time.monotonic()
        jobs = [Job(0.0, 1, 3), Job(0.1, 2, 3), Job(0.2, 3, 3)]
        whole, refused, hung = await Sender(client, seed=1).send(jobs, began, patience=0.6)
    assert time.monotonic() - began < 3
    assert whole.whole
    assert 0.04 < whole.ttft < 0.4
    assert 0.03 < whole.tpot < 0.4
    assert refused == Answer(0.1, None, None, whole=False)
    assert (hung.ttft, hung.whole) == (None, False)


PAGE = """vllm:num_requests_running{{model_name="m"}} 2.0
vllm:num_requests_waiting{{model_name="m"}} 9.0
inflight_max_num_seqs{{model_name="m"}} {seqs}.0
inflight_max_num_batched_tokens{{model_name="m"}} {tokens}.0
inflight_runtime_config_revision{{model_name="m"}} {revision}.0
"""


@pytest.mark.parametrize("engine", [EngineType(), EngineType("vllm", plugin=True)], ids=lambda engine: engine.name)
async def test_the_pilot_tells_the_engine_what_the_operator_decides(engine):
    """Limits beyond the capacity are what the operator moves at once, without measuring: enough to see the way."""
    start = LimitsInForce(Limits(200, 512), 1)
    applied = [start]

    class Admin:
        async def sample(self):
            seqs, tokens = applied[-1].limits.max_num_seqs, applied[-1].limits.max_num_batched_tokens
            page = PAGE.format(seqs=seqs, tokens=tokens, revision=applied[-1].revision)
            return parse_metrics(page, time.monotonic())

        async def set_limits(self, limits, revision=None):
            applied.append(LimitsInForce(limits, revision))

    pod = Engine("", _pod(8000, engine))
    pilot = Pilot(engine.name, Admin(), pod, TARGETS, measure.CAPACITY, start, lambda line: None)
    for _ in range(3):
        await pilot._round()
    assert applied == [start, LimitsInForce(Limits(128, 512), 2)]
    assert [change.limits for change in pilot.changes] == [Limits(128, 512)]
    assert "max_num_seqs 200 -> 128" in pilot.changes[0].text
