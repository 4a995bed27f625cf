"""A recorded run replays without a difference; another plan, or another end, is found in the step where it is made."""

import gzip
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace as altered

from inflight_engine.cache.tiers import Stores
from inflight_engine.recording import replay as replay_module
from inflight_engine.recording.lines import Added, Cancelled, PlanDigest, PrefillCostChanged, Step, TimePassed
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.replay import Survey, replay
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import BlockGrowth, Preemption, PrefillChunk, SlotStart, StepPlan
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.preemption import VICTIMS
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.scheduling import ServiceClass
from tests.engine.recording.workload import CLASSES, CONFIG, Workload, config


def difference_in(events, configuration=CONFIG):
    return replay(configuration, events, Survey(events))


def replay_file(path):
    recording = Recording(path)
    return difference_in(list(recording.events()), recording.header.config)


@pytest.fixture(scope="module")
def run():
    return Workload(seed=7)


@pytest.fixture(scope="module")
def events(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "run.gz"
    path.write_bytes(run.run(3000))
    return list(Recording(path).events())


MODES = ("recompute", "swap", "auto")


# Each policy with each victim rule and with each mode, and each of these with each other; not all three with all.
@pytest.mark.parametrize(
    ("policy", "victim", "preemption"),
    [
        (policy, victim, MODES[(row + column) % len(MODES)])
        for row, policy in enumerate(sorted(POLICIES))
        for column, victim in enumerate(sorted(VICTIMS))
    ],
)
def test_random_work_replays_without_a_difference(tmp_path, policy, victim, preemption):
    path = tmp_path / "run.gz"
    configuration = config(policy=policy, preemption_victim=victim, preemption=preemption)
    run = Workload(configuration, seed=1)
    path.write_bytes(run.run(1500))
    survey = Survey(Recording(path).events())
    assert replay_file(path) is None
    assert (survey.num_requests, survey.num_steps) == (run.num_added, run.num_steps)
    assert min(run.hits, run.stopped, run.cancelled, run.scheduler.preemptor.num_preemptions) > 0, (
        "the run shows too little"
    )
    assert preemption == "auto" or (run.loaded > 0) == (preemption == "swap")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "configuration",
    [
        config(classes=(ServiceClass(),), num_host_blocks=0),
        config(prefix_caching=False),
        config(num_blocks=400, max_model_len=200, classes=(*CLASSES, ServiceClass("night", 0.1))),
        config(block_size=1, num_blocks=96, num_host_blocks=48),
        config(block_size=7),
    ],
    ids=["one class, no tier", "no prefix cache", "many blocks", "blocks of one", "blocks of seven"],
)
def test_any_configuration_replays_without_a_difference(tmp_path, configuration, seed):
    path = tmp_path / "run.gz"
    path.write_bytes(Workload(configuration, seed).run(600))
    assert replay_file(path) is None


@pytest.mark.parametrize("seed", [0, 2, 3])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_run_planned_ahead_replays_without_a_difference(tmp_path, preemption, seed):
    path = tmp_path / "run.gz"
    run = Workload(config(preemption=preemption), seed, lookahead=True)
    path.write_bytes(run.run(1500))
    survey = Survey(Recording(path).events())
    assert replay_file(path) is None
    assert survey.num_steps == run.num_steps
    assert min(run.hits, run.stopped, run.cancelled, run.late_tokens, run.scheduler.preemptor.num_preemptions) > 0
    assert (run.damaged > 0) == (preemption == "swap")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("num_classes", [1, 2])
def test_time_is_recorded_where_it_changes_an_order_and_nowhere_else(tmp_path, lookahead, num_classes, seed):
    path = tmp_path / "run.gz"
    classes = (replace(CLASSES[0], ttft_target=0.6), CLASSES[1])[:num_classes]
    configuration = config(
        policy="deadline",
        ttft_target=2.0,
        ttft_per_1k_tokens=50.0 * (seed % 2),
        late_share=0.3,
        classes=classes,
        prefix_caching=seed > 0,
    )
    run = Workload(configuration, seed, lookahead=lookahead)
    path.write_bytes(run.run(1500))
    events = list(Recording(path).events())
    times = [each for each in events if isinstance(each, TimePassed)]
    assert replay_file(path) is None
    assert 10 < len(times) == run.num_changes < run.num_added
    assert any(isinstance(each, PrefillCostChanged) and each.cost is not None for each in events)
    earlier = [altered(each, now=0.0) if isinstance(each, TimePassed) else each for each in events]
    assert difference_in(earlier, configuration) is not None


def test_a_failed_step_and_the_one_launched_after_it_replay_without_a_difference(tmp_path):
    path = tmp_path / "run.gz"
    run = Workload(seed=9, lookahead=True)
    path.write_bytes(run.run(4000))
    steps = [each for each in Recording(path).events() if isinstance(each, Step)]
    assert run.failed > 1
    assert any(
        first.ended is None and second.ended is None and first.ahead and not second.ahead
        for first, second in pairwise(steps)
    )
    assert replay_file(path) is None


def test_a_run_planned_ahead_differs_where_its_lines_say_otherwise(tmp_path):
    path = tmp_path / "run.gz"
    path.write_bytes(Workload(seed=5, lookahead=True).run(1500))
    steps = [altered(each, ahead=False) if isinstance(each, Step) else each for each in Recording(path).events()]
    assert difference_in(steps) is not None


def test_a_run_with_failed_steps_replays_without_a_difference(events, run):
    assert run.failed > 0
    assert any(event.ended is None for event in events if isinstance(event, Step))
    assert difference_in(events) is None


def test_a_recording_cut_at_any_line_replays_without_a_difference(events):
    for length in range(0, len(events), 297):
        assert difference_in(events[:length]) is None


class Changed(Scheduler):
    """A scheduler whose plans are noted, and one of them altered."""

    plans: list[StepPlan]
    alter: tuple[int, dict] | None

    def schedule(self, now=0.0):
        plan = super().schedule(now)
        if plan is not None:
            if self.alter is not None and plan.step == self.alter[0]:
                plan = altered(plan, **self.alter[1])
            self.plans.append(plan)
        return plan


@pytest.fixture
def changed(monkeypatch):
    """Replays with a `Changed` scheduler: returns its plans, and the difference."""
    monkeypatch.setattr(replay_module, "Scheduler", Changed)

    def run(events, alter=None, configuration=CONFIG):
        monkeypatch.setattr(Changed, "plans", [], raising=False)
        monkeypatch.setattr(Changed, "alter", alter, raising=False)
        difference = difference_in(events, configuration)
        return Changed.plans, difference

    return run


def decisions(plan):
    """The fields that the digest must cover."""
    return (
        plan.num_tokens,
        plan.releases,
        plan.decode_slots.tolist(),
        [(each.slot, each.start, each.length) for each in plan.prefills],
        [(each.request_id, each.slot) for each in plan.preemptions],
        [(each.request_id, each.slot, each.num_computed_tokens, len(each.host_block_ids)) for each in plan.starts],
        0 if plan.stores is None else len(plan.stores.block_ids),
    )


@pytest.mark.parametrize(
    "changes",
    [
        *({"policy": policy} for policy in sorted(POLICIES) if policy not in (CONFIG.policy, "deadline")),
        *({"preemption_victim": victim} for victim in sorted(VICTIMS) if victim != CONFIG.preemption_victim),
        {"kv_headroom": 0.3},
        {"prefix_caching": False, "preemption": "recompute"},
        {"preemption": "recompute"},
        {"num_blocks": CONFIG.num_blocks - 1},
    ],
    ids=str,
)
def test_another_scheduler_is_caught_in_the_first_step_that_it_plans_otherwise(tmp_path, changed, changes):
    path = tmp_path / "run.gz"
    run = Workload(config(preemption="swap"), seed=7)
    path.write_bytes(run.run(3000))
    events = list(Recording(path).events())
    right, difference = changed(events, configuration=run.config)
    assert difference is None
    plans, difference = changed(events, configuration=config(**{"preemption": "swap"} | changes))
    assert (difference.what, difference.request_id) == ("plan", None)
    *same, last = plans
    assert difference.step == last.step == len(same)
    assert list(map(decisions, same)) == list(map(decisions, right[: len(same)]))
    assert decisions(last) != decisions(right[last.step])


ALTERED = {
    "starts": lambda plan: {"starts": [altered(plan.starts[0], num_computed_tokens=1977), *plan.starts[1:]]},
    "a start less": lambda plan: {"starts": plan.starts[1:]},
    "prefills": lambda plan: {"prefills": [altered(plan.prefills[0], length=1978), *plan.prefills[1:]]},
    "preemptions": lambda plan: {"preemptions": [altered(plan.preemptions[0], request_id=1979), *plan.preemptions[1:]]},
    "releases": lambda plan: {"releases": plan.releases[:-1]},
    "decode_slots": lambda plan: {"decode_slots": plan.decode_slots[1:]},
    "num_tokens": lambda plan: {"num_tokens": plan.num_tokens + 1},
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_plan_is_shown_in_its_step(events, changed, what):
    field = "starts" if what == "a start less" else what
    plans, difference = changed(events)
    assert difference is None
    found = [plan for plan in plans if (len(plan.decode_slots) if field == "decode_slots" else getattr(plan, field))]
    assert len(found) > 3, f"the run shows too few {field}"
    recorded = {each.step: each for each in events if isinstance(each, Step)}
    for plan in found[:: max(1, len(found) // 6)]:
        if what == "num_tokens" and not plan.prefills:
            continue  # it is then the number of decodes
        _, difference = changed(events, (plan.step, ALTERED[what](plan)))
        assert difference[:3] == (plan.step, None, "plan")
        work = recorded[plan.step].work
        assert difference.recorded.startswith(
            f"{work.decode_seqs:g} decodes that read {work.decode_kv_tokens:g} tokens"
        )
        assert f"{work.prefill_tokens:g} prefill tokens" in difference.recorded
        shown = difference.replayed.splitlines()
        assert sum(line.strip().startswith("started: ") for line in shown) == len(plan.starts) - (
            what == "a start less"
        )
        assert sum(line.strip().startswith("decode: ") for line in shown) == len(plan.decode_slots) - (
            what == "decode_slots"
        )
        assert ("with 1977 of" in difference.replayed) == (what == "starts")
        assert ("request 1979 from slot" in difference.replayed) == (what == "preemptions")
        assert (f"to {plan.prefills[0].start + 1977}" in difference.replayed if plan.prefills else False) == (
            what == "prefills"
        )


def test_a_difference_reads_like_this(events, changed):
    plans, _ = changed(events)
    plan = next(each for each in plans if each.starts and each.releases and len(each.decode_slots))
    _, difference = changed(events, (plan.step, {"prefills": ()}))
    start, slot = plan.starts[0], int(plan.decode_slots[0])
    head, recorded, replayed, *lines = str(difference).splitlines()
    assert head == f"step {plan.step}: another plan"
    assert recorded == f"  recorded: {difference.recorded}"
    assert recorded.endswith(("no request ended", "ended as length", "ended as stop"))
    assert replayed.startswith(f"  replayed: {len(plan.decode_slots)} decodes that read ")
    assert lines[0] == f"    released: slot {plan.releases[0]}"
    assert (
        f"    started: request {start.request_id} in slot {start.slot} with {start.num_computed_tokens} of "
        f"{len(start.token_ids)} tokens cached"
    ) in lines
    assert lines[-1].startswith("    decode: request ")
    assert any(line.endswith(f" in slot {slot}") for line in lines)


def a_plan(**fields):
    plan = StepPlan(
        step=4,
        preemptions=(Preemption(3, 12),),
        releases=(3, 5),
        starts=(SlotStart(3, 13, np.arange(70, dtype=np.int32), 70, 32, SamplingParams(9), np.arange(5), ()),),
        growth=BlockGrowth(np.array([1]), np.array([2]), np.array([7], np.int32)),
        prefills=(PrefillChunk(3, 32, 38, True),),
        decode_slots=np.array([0, 1, 2]),
        num_tokens=41,
        stores=Stores(np.arange(2, dtype=np.int32), np.arange(4, 6, dtype=np.int32)),
    )
    return altered(plan, **fields)


def test_a_digest_is_the_same_on_every_machine():
    assert PlanDigest().of(a_plan()) == 3279010331
    nothing = {"preemptions": (), "releases": (), "starts": (), "prefills": (), "num_tokens": 3, "stores": None}
    assert PlanDigest().of(a_plan(**nothing)) == 1334598860
    digests = PlanDigest()
    assert [digests.of(a_plan()), digests.of(a_plan(**nothing)), digests.of(a_plan())] == [
        3279010331,
        1334598860,
        3279010331,
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, ">i8"])
def test_a_digest_does_not_depend_on_how_slots_are_stored(dtype):
    assert PlanDigest().of(a_plan(decode_slots=np.array([0, 1, 2], dtype))) == PlanDigest().of(a_plan())


def test_a_digest_leaves_out_the_step_and_its_blocks_and_tokens():
    plan = a_plan()
    start = altered(plan.starts[0], token_ids=np.zeros(70, np.int32), block_ids=np.arange(5, 10))
    stores = Stores(np.arange(6, 8, dtype=np.int32), np.arange(2, dtype=np.int32))
    others = {"step": 5, "growth": None, "starts": (start,), "stores": stores}
    assert PlanDigest().of(altered(plan, **others)) == PlanDigest().of(plan)


def test_every_decision_changes_the_digest():
    plan = a_plan()
    one, start, chunk = plan.preemptions[0], plan.starts[0], plan.prefills[0]
    others = [
        *(a_plan(preemptions=(altered(one, **each),)) for each in ({"slot": 4}, {"request_id": 9})),
        a_plan(stores=None),
        *(a_plan(releases=each) for each in ((3,), (5, 3), (3, 6))),
        *(a_plan(starts=(altered(start, **{field: 30}),)) for field in ("slot", "request_id", "num_computed_tokens")),
        *(a_plan(starts=each) for each in ((), (start, start), (altered(start, host_block_ids=(3,)),))),
        *(a_plan(prefills=(altered(chunk, **{field: 30}),)) for field in ("slot", "start", "length")),
        *(a_plan(decode_slots=np.array(each)) for each in ([0, 1], [0, 2, 1], [0, 1, 3], [0, 1, 2, 3])),
        a_plan(num_tokens=40),
    ]
    digests = [PlanDigest().of(each) for each in (plan, *others)]
    assert len(set(digests)) == len(digests)


def with_line(events, place, line):
    return [*events[:place], line, *events[place + 1 :]]


def test_an_altered_end_is_found(events):
    ends = [(place, each) for place, each in enumerate(events) if isinstance(each, Step) and each.ended]
    assert len(ends) > 3
    for place, step in ends[:: max(1, len(ends) // 6)]:
        difference = difference_in(with_line(events, place, altered(step, ended=step.ended[:-1])))
        last = step.ended[-1]
        if last.reason == "length":
            assert difference[:3] == (step.step, None, "end")
            assert difference.replayed.endswith(f"request {last.request_id} ended as length")
            assert str(last.request_id) not in difference.recorded.split()
        else:
            # Without the line nothing says that it sampled a stop token, so it goes on until something shows it.
            assert difference.step >= step.step


def test_arrivals_that_were_left_out_are_missed_where_they_were_admitted(events, changed):
    plans, _ = changed(events)
    first_start = {}
    for plan in plans:
        for start in plan.starts:
            first_start.setdefault(start.request_id, plan.step)
    arrivals = [(place, each) for place, each in enumerate(events) if isinstance(each, Added)]
    for place, arrival in arrivals[:: len(arrivals) // 6]:
        difference = difference_in([*events[:place], *events[place + 1 :]])
        if difference.what == "cancel":
            assert difference.request_id == arrival.request_id
        else:
            assert difference.what in ("plan", "step")
            assert difference.step <= first_start[arrival.request_id]
            assert f"request {arrival.request_id} in slot" not in difference.replayed


def test_a_replay_with_nothing_to_run_says_what_was_computed(events):
    first = next(each for each in events if isinstance(each, Step))
    difference = difference_in([first])
    assert difference[:3] == (first.step, None, "step")
    assert difference.recorded.startswith(f"0 decodes that read 0 tokens, {first.work.prefill_tokens:g} prefill tokens")
    assert difference.replayed == "nothing to run"


def test_a_cancel_of_nobody_is_named(events):
    place = next(place for place, each in enumerate(events) if isinstance(each, Cancelled))
    difference = difference_in([*events[:place], altered(events[place], request_id=9999), *events[place + 1 :]])
    assert (difference.request_id, difference.what, difference.replayed) == (9999, "cancel", "not there")
    assert str(difference).splitlines()[0] == f"step {difference.step}, request 9999: another cancel"


def test_a_request_that_does_not_fit_is_named(events):
    place = next(place for place, each in enumerate(events) if isinstance(each, Added))
    difference = difference_in(with_line(events, place, altered(events[place], max_tokens=10_000)))
    assert (difference.request_id, difference.what, difference.recorded) == (events[place].request_id, "add", "queued")
    assert difference.replayed.startswith("refused: ")


def test_a_line_altered_by_hand_in_an_unpacked_file_is_found(tmp_path):
    packed, plain = tmp_path / "run.gz", tmp_path / "run.jsonl"
    packed.write_bytes(Workload(seed=2).run(800))
    lines = [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
    step = next(line for line in lines[len(lines) // 2 :] if line[0] == "step")
    step[4] += 1
    plain.write_text("\n".join(map(json.dumps, lines)) + "\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        difference = replay_file(path)
        assert difference[:3] == (step[1], None, "plan")
        assert str(difference).startswith(f"step {step[1]}: another plan\n  recorded: ")
