"""A recorded run replays without a difference; one that was altered differs where it was altered."""

import gzip
import json
from dataclasses import replace
from itertools import count, pairwise

import pytest
from msgspec.structs import replace as altered

from inflight_engine.recording.lines import (
    FORMAT_VERSION,
    Added,
    Cancelled,
    Chunk,
    PrefillCostChanged,
    Step,
    TimePassed,
)
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.replay import replay
from inflight_engine.recording.survey import Survey
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.victims import VICTIMS
from inflight_settings.scheduling import ServiceClass
from tests.engine.recording.workload import CLASSES, CONFIG, Workload, config


def difference_in(events, configuration=CONFIG):
    return replay(configuration, events, Survey(events))


def replay_file(path):
    recording = Recording(path)
    return difference_in(list(recording.events()), recording.header.config)


@pytest.fixture(scope="module")
def run():
    return Workload(seed=5)


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
    assert min(run.hits, run.stopped, run.cancelled, run.scheduler.num_preemptions) > 0, "the run shows too little"
    assert preemption == "auto" or (run.swapped_in > 0) == (preemption == "swap")


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
    ids=["one class, no swap", "no prefix cache", "many blocks", "blocks of one", "blocks of seven"],
)
def test_any_configuration_replays_without_a_difference(tmp_path, configuration, seed):
    path = tmp_path / "run.gz"
    path.write_bytes(Workload(configuration, seed).run(600))
    assert replay_file(path) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_run_planned_ahead_replays_without_a_difference(tmp_path, preemption, seed):
    path = tmp_path / "run.gz"
    run = Workload(config(preemption=preemption), seed, lookahead=True)
    path.write_bytes(run.run(1500))
    survey = Survey(Recording(path).events())
    assert replay_file(path) is None
    assert survey.num_steps == run.num_steps
    assert min(run.hits, run.stopped, run.cancelled, run.late_tokens, run.scheduler.num_preemptions) > 0


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


def test_a_file_of_the_format_without_times_replays_as_it_did(tmp_path):
    path = tmp_path / "run.gz"
    header, *lines = gzip.decompress(Workload(seed=3, lookahead=True).run(1500)).decode().splitlines()
    header = json.loads(header)
    header["version"] = 2
    for later in ("ttft_target", "ttft_per_1k_tokens", "late_share"):
        del header["config"][later]
    path.write_text("\n".join([json.dumps(header), *(line for line in lines if '["cost"' not in line)]) + "\n")
    assert replay_file(path) is None


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


def test_a_file_that_says_nothing_of_steps_planned_ahead_replays_as_it_did(tmp_path):
    path = tmp_path / "run.gz"
    header, *lines = gzip.decompress(Workload(seed=3).run(1500)).decode().splitlines()
    older = [header.replace(f'"version":{FORMAT_VERSION}', '"version":1')]
    for line in map(json.loads, lines):
        older.append(json.dumps(line[:-1] if line[0] == "step" else line))
    path.write_text("\n".join(older) + "\n")
    assert Recording(path).header.version == 1
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


def steps_with(events, field):
    """Some of the lines that have such decisions, with their places."""
    found = [(place, each) for place, each in enumerate(events) if isinstance(each, Step) and getattr(each, field)]
    assert len(found) > 3, f"the run shows too few {field}"
    return found[:: max(1, len(found) // 6)]


def with_line(events, place, line):
    return [*events[:place], line, *events[place + 1 :]]


def test_an_altered_start_is_named(events):
    for place, step in steps_with(events, "starts"):
        start = step.starts[-1]
        other = altered(start, num_computed_tokens=start.num_computed_tokens + 4)
        difference = difference_in(with_line(events, place, altered(step, starts=[*step.starts[:-1], other])))
        assert (difference.step, difference.request_id, difference.what) == (step.step, start.request_id, "start")
        assert f"with {other.num_computed_tokens} " in difference.recorded
        assert f"with {start.num_computed_tokens} " in difference.replayed


def test_a_start_that_was_left_out_is_named(events):
    for place, step in steps_with(events, "starts"):
        difference = difference_in(with_line(events, place, altered(step, starts=step.starts[1:])))
        first = step.starts[0]
        if len(step.starts) == 1:
            assert difference[:4] == (step.step, first.request_id, "start", "not admitted")
        else:
            assert difference[:3] == (step.step, step.starts[1].request_id, "start")
            assert difference.recorded.endswith("as number 1 in the step")
            assert difference.replayed.endswith("as number 2 in the step")


def test_an_altered_chunk_is_named(events):
    for place, step in steps_with(events, "chunks"):
        before = (each for each in events[: place + 1] if isinstance(each, Step))
        request_in = {start.slot: start.request_id for each in before for start in each.starts}
        slot, start, length = step.chunks[0].slot, step.chunks[0].start, step.chunks[0].length
        other = altered(step, chunks=[Chunk(slot, start, length + 1), *step.chunks[1:]])
        difference = difference_in(with_line(events, place, other))
        assert difference[:3] == (step.step, request_in[slot], "prefill")
        assert difference.recorded == f"tokens {start} to {start + length} computed in slot {slot}"
        assert difference.replayed == f"tokens {start} to {start + length - 1} computed in slot {slot}"


def test_an_altered_preemption_is_named(events):
    for place, step in steps_with(events, "preemptions"):
        first = step.preemptions[0]
        other = altered(first, swapped_out=not first.swapped_out)
        line = altered(step, preemptions=[other, *step.preemptions[1:]])
        difference = difference_in(with_line(events, place, line))
        assert difference[:3] == (step.step, first.request_id, "preemption")
        assert {difference.recorded, difference.replayed} == {
            f"preempted from slot {first.slot}, swapped out",
            f"preempted from slot {first.slot}, to be recomputed",
        }


def test_an_altered_release_is_named(events):
    for place, step in steps_with(events, "releases"):
        difference = difference_in(with_line(events, place, altered(step, releases=step.releases[:-1])))
        slot = step.releases[-1]
        assert (difference.step, difference.what) == (step.step, "release")
        assert difference[3:] == ("slot not given up", f"slot {slot} given up")
        assert difference.request_id is not None


def test_an_altered_end_is_named(events):
    for place, step in steps_with(events, "ended"):
        difference = difference_in(with_line(events, place, altered(step, ended=step.ended[:-1])))
        last = step.ended[-1]
        if last.reason == "length":
            assert difference == (step.step, last.request_id, "end", "not ended", "ended as length")
        else:
            # Without the line nothing says that it sampled a stop token, so it goes on until something shows it.
            assert difference.step >= step.step


def test_an_altered_decode_is_named(events):
    for place, step in steps_with(events, "decodes"):
        difference = difference_in(with_line(events, place, altered(step, decodes=step.decodes[1:])))
        assert (difference.step, difference.what) == (step.step, "decode")
        words = {f"slot {step.decodes[0]} decodes a token", f"slot {step.decodes[0]} decodes nothing"}
        assert {difference.recorded, difference.replayed} == words


def test_an_altered_number_of_tokens_is_named(events):
    place, step = steps_with(events, "starts")[2]
    difference = difference_in(with_line(events, place, altered(step, num_tokens=step.num_tokens + 1)))
    assert difference[:3] == (step.step, None, "num_tokens")


def test_arrivals_that_were_left_out_are_missed_where_they_were_admitted(events):
    arrivals = [(place, each) for place, each in enumerate(events) if isinstance(each, Added)]
    for place, arrival in arrivals[:: len(arrivals) // 6]:
        difference = difference_in([*events[:place], *events[place + 1 :]])
        starts = (
            each for each in events[place:] if isinstance(each, Step) and each.starts and each.step >= difference.step
        )
        if difference.what == "cancel":
            assert difference.request_id == arrival.request_id
        else:
            assert difference.step == next(starts).step
        if difference.what == "start" and difference.request_id == arrival.request_id:
            assert (difference.recorded.startswith("admitted"), difference.replayed) == (True, "not admitted")


def test_a_replay_with_nothing_to_run_names_who_ran(events):
    first = next(each for each in events if isinstance(each, Step))
    difference = difference_in([first])
    assert difference[:3] == (first.step, first.starts[0].request_id, "step")
    assert difference[3:] == ("a step computed", "nothing to run")


def test_a_cancel_of_nobody_is_named(events):
    place = next(place for place, each in enumerate(events) if isinstance(each, Cancelled))
    difference = difference_in([*events[:place], altered(events[place], request_id=9999), *events[place + 1 :]])
    assert (difference.request_id, difference.what, difference.replayed) == (9999, "cancel", "not there")


def test_a_request_that_does_not_fit_is_named(events):
    place = next(place for place, each in enumerate(events) if isinstance(each, Added))
    difference = difference_in(with_line(events, place, altered(events[place], max_tokens=10_000)))
    assert (difference.request_id, difference.what, difference.recorded) == (events[place].request_id, "add", "queued")
    assert difference.replayed.startswith("refused: ")


def test_a_line_altered_by_hand_in_an_unpacked_file_is_found(tmp_path):
    packed, plain = tmp_path / "run.gz", tmp_path / "run.jsonl"
    packed.write_bytes(Workload(seed=2).run(800))
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    for place in count(len(lines) // 2):
        line = json.loads(lines[place])
        if line[0] == "step" and line[5]:
            break
    request_id = line[5][0][0]
    line[5][0][1] = 5 if line[5][0][1] != 5 else 4
    lines[place] = json.dumps(line)
    plain.write_text("\n".join(lines) + "\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        difference = replay_file(path)
        assert (difference.step, difference.request_id, difference.what) == (line[1], request_id, "start")
        assert str(difference).startswith(f"step {line[1]}, request {request_id}: recorded: admitted to slot ")
