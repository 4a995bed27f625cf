"""The file a recorder writes: what is in it, what never is, and that it harms nobody when it cannot go on."""

import gzip
import io
import json
import logging
import zlib
from pathlib import Path

import numpy as np
import pytest

from inflight_cost.model import StepWork
from inflight_engine.recording import content
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.recorder import Recorder
from inflight_engine.recording.replay import Survey, replay
from inflight_engine.request import FinishReason, ForcedRun, Request, SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart, StepPlan
from inflight_settings.limits import Limits, LimitsInForce
from tests.engine.recording.workload import CONFIG, Keep, Workload, config
from tests.engine.scheduling_fields import gathered

NOTHING = np.empty(0, np.intp)


def recorder(sink, **options):
    return Recorder(CONFIG, sink, is_cached=lambda block_hash: False, **options)


def request(request_id=0, tokens=(11, 12, 13, 14, 15), hashes=(), **fields):
    made = Request(
        request_id, np.array(tokens, np.int32), SamplingParams(max_tokens=9), arrival_time=1.5, **gathered(fields)
    )
    made.block_hashes = list(hashes)
    return made


def plan(step, decode_slots=NOTHING, **fields):
    nothing = {"preemptions": (), "releases": (), "starts": (), "growth": None, "prefills": ()}
    return StepPlan(**{**nothing, "step": step, "decode_slots": decode_slots, "num_tokens": 1, **fields})


def work(step):
    """A decode whose context grows by a token a step."""
    return StepWork(1, 0, 5 + step, 0)


def lines(packed):
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def test_a_run_reads_like_this():
    sink = Keep()
    record = recorder(sink)
    first = request(7, hashes=[b"A"], priority=2, predicted_tokens=4)
    record.added(first)
    start = SlotStart(3, 7, first.prompt_token_ids, 5, 0, first.sampling, np.arange(2, dtype=np.int32), ())
    record.stepped(
        plan(0, starts=(start,), prefills=(PrefillChunk(3, 0, 5, True),), num_tokens=5), StepWork(0, 5, 0, 15), [], 0.25
    )
    decodes = np.array([3])
    record.stepped(plan(1, decodes), work(1), [], 0.001)
    record.stepped(plan(2, decodes), work(2), [], 0.0020004)
    record.stepped(plan(3, decodes), work(3), [], 0.003)
    record.stepped(plan(4, decodes), work(4), [], 0.004, ahead=True)
    record.stepped(plan(5, decodes), work(5), [], 0.005, ahead=True)
    record.limits(LimitsInForce(Limits(2, 8), 5))
    record.weights({"chat": 2.0})
    record.rates(None)
    record.failed(plan(6, decodes), work(6), 0.006)
    first.block_hashes.append(b"B")
    record.cancelled(7, FinishReason.ERROR)
    record.close()
    header, *events = lines(sink.content)
    scheduling = {"service_class": "default", "priority": 2, "tenant": "", "cache_salt": "", "predicted_tokens": 4}
    scheduling |= {"resumes": True}
    assert header["record"] == "inflight-engine schedule"
    assert header["config"]["capacity"]["max_num_seqs"] == CONFIG.capacity.max_num_seqs
    assert events == [
        ["add", 7, 1.5, 5, 0, 9, scheduling, [[0, 1]]],
        ["step", 0, 250000, [0, 5, 0, 15, 0], 2908796807, [], False, [], [], []],
        ["step", 1, 1000, [1, 0, 6, 0, 0], 3954038922, [], False, [], [], []],
        ["same", [2000, 3000]],
        ["step", 4, 4000, [1, 0, 9, 0, 0], 3954038922, [], True, [], [], []],
        ["same", [5000]],
        ["limits", {"max_num_seqs": 2, "max_num_batched_tokens": 8}, 5],
        ["weights", {"chat": 2.0}],
        ["rates", None],
        ["step", 6, 6000, [1, 0, 11, 0, 0], 3954038922, None, False, [], [], []],
        ["cancel", 7, "error"],
        ["blocks", 7, [[1, 1]]],
    ]


def test_the_configuration_comes_back_whole(tmp_path):
    path = tmp_path / "run.gz"
    configuration = config(policy="priority", priority_aging=2.5, preemption="swap", prefix_caching=False)
    path.write_bytes(Workload(configuration).run(0))
    assert Recording(path).header.config == configuration


def test_no_token_tenant_or_salt_is_written():
    sink = Keep()
    record = recorder(sink)
    hashes = [bytes(range(16)), bytes(range(16, 32))]
    record.added(request(0, tokens=[31337, 31338, 31339, 31340], hashes=hashes, tenant="acme", cache_salt="pepper"))
    record.added(request(1, tokens=[31337], tenant="acme"))
    record.added(request(2, tokens=[31337], tenant="other"))
    record.close()
    text = gzip.decompress(sink.content).decode()
    for secret in ("31337", "31338", "31339", "31340", "acme", "pepper", "other", hashes[0].hex()):
        assert secret not in text
    tenants = [line[6]["tenant"] for line in lines(sink.content)[1:]]
    assert tenants[0] == tenants[1] != tenants[2]


def test_two_recordings_name_a_tenant_differently():
    tenants = []
    for _ in range(2):
        sink = Keep()
        record = recorder(sink)
        record.added(request(tenant="acme"))
        record.close()
        tenants.append(lines(sink.content)[1][6]["tenant"])
    assert tenants[0] != tenants[1]


def test_what_was_flushed_is_there_after_a_kill():
    sink = io.BytesIO()
    record = recorder(sink)
    record.added(request(1))
    record.flush()
    record.added(request(2))
    text = zlib.decompressobj(wbits=31).decompress(sink.getvalue())
    assert [json.loads(line)[1] for line in text.splitlines()[1:]] == [1]


def test_a_second_of_steps_flushes():
    sink = io.BytesIO()
    record = recorder(sink)
    decodes = np.array([0])
    record.stepped(plan(0, decodes), work(0), [], 0.3)
    record.stepped(plan(1, decodes), work(1), [], 0.3)
    before = len(sink.getvalue())
    record.stepped(plan(2, decodes), work(2), [], 0.41)
    text = zlib.decompressobj(wbits=31).decompress(sink.getvalue())
    assert len(sink.getvalue()) > before
    assert json.loads(text.splitlines()[-1]) == ["same", [300000, 410000]]


def test_the_size_limit_ends_the_recording_with_one_warning_and_a_whole_file(tmp_path, caplog):
    path = tmp_path / "run.gz"
    run = Workload(seed=3, max_bytes=4000)
    with caplog.at_level(logging.WARNING):
        packed = run.run(3000)
    assert [record.message for record in caplog.records] == [
        "the recording has reached its limit of 4000 bytes and ends here"
    ]
    assert 4000 <= len(packed) < 8000
    path.write_bytes(packed)
    recording = Recording(path)
    events = list(recording.events())
    assert not recording.cut_short
    assert replay(CONFIG, events, Survey(events)) is None
    assert 0 < Survey(events).num_steps < run.num_steps


class FullDisk(io.BytesIO):
    """Takes so many bytes and no more, as a disk does: also when it is closed."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def write(self, data):
        if self.tell() + len(data) > self.room:
            super().write(data[: self.room - self.tell()])
            raise OSError(28, "No space left on device")
        return super().write(data)

    def close(self):
        self.content = self.getvalue()
        super().close()
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_recording_with_one_warning_and_never_the_engine(tmp_path, caplog):
    run = Workload(seed=3, sink=FullDisk(3000))
    with caplog.at_level(logging.WARNING):
        packed = run.run(3000)
    assert [record.message for record in caplog.records] == [
        "the recording cannot be written and ends here: No space left on device"
    ]
    path = tmp_path / "run.gz"
    path.write_bytes(packed)
    recording = Recording(path)
    events = list(recording.events())
    assert recording.cut_short
    assert replay(CONFIG, events, Survey(events)) is None


def test_a_disk_that_is_full_where_the_limit_is_warns_once(caplog):
    record = recorder(FullDisk(700), max_bytes=600)
    for request_id in range(1000):
        record.added(request(request_id, tenant=str(request_id)))
    record.flush()
    assert [entry.message for entry in caplog.records] == [
        "the recording cannot be written and ends here: No space left on device"
    ]


def test_a_file_is_overwritten_and_closed(tmp_path):
    path = tmp_path / "run.gz"
    path.write_bytes(bytes(10_000))
    Recorder.to_file(str(path), CONFIG, lambda block_hash: False).close()
    assert len(lines(path.read_bytes())) == 1


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path):
    with pytest.raises(OSError, match=r"^cannot record to .*/none/run\.gz: No such file or directory$"):
        Recorder.to_file(str(tmp_path / "none" / "run.gz"), CONFIG, lambda block_hash: False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_device_without_room_warns_once(caplog):
    record = Recorder.to_file("/dev/full", CONFIG, lambda block_hash: False)
    record.added(request())
    record.flush()
    record.close()
    assert [entry.message for entry in caplog.records] == [
        "the recording cannot be written and ends here: No space left on device"
    ]


def test_nothing_is_kept_of_requests_after_the_recording_ended():
    run = Workload(seed=3, max_bytes=1000)
    run.run(2000)
    run.recorder.flush()
    run.recorder.close()
    assert not run.recorder._requests
    assert not run.recorder._repeated
    assert len(run.recorder._lines) < 1000


@pytest.mark.parametrize("seed", range(4))
def test_block_hashes_are_forgotten_but_no_decision_changes(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(content, "_FEWEST_BEFORE_FORGETTING", 20)
    path = tmp_path / "run.gz"
    run = Workload(seed=seed)
    path.write_bytes(run.run(2500))
    contents = run.recorder._contents
    assert contents._next > 500
    assert len(contents._numbers) <= 300
    recording = Recording(path)
    assert run.hits > 5
    assert replay(CONFIG, recording.events(), Survey(recording.events())) is None


def test_runs_join_blocks_whose_numbers_follow_each_other():
    numbers = content.ContentNumbers({}, lambda block_hash: True)
    assert numbers.runs([]) == []
    assert numbers.runs([b"a", b"b", b"c", b"d"]) == [(0, 4)]
    assert numbers.runs([b"c", b"d", b"e", b"a", b"f", b"g"]) == [(2, 3), (0, 1), (5, 2)]


def test_steps_with_another_context_or_after_a_failed_one_do_not_repeat():
    sink, decodes = Keep(), np.array([3])
    record = recorder(sink)
    record.stepped(plan(0, decodes), work(0), [], 0.001)
    record.stepped(plan(1, decodes), work(2), [], 0.001)
    record.failed(plan(2, decodes), work(3), 0.001)
    record.stepped(plan(3, decodes), work(4), [], 0.001)
    record.stepped(plan(4, decodes), work(5), [], 0.001)
    record.stepped(plan(5, decodes), work(6), [], 0.001, failed_slots=(3,))
    run = ForcedRun(3, np.array([8, 9], np.int32), ends=False)
    record.stepped(plan(6, decodes), work(7), [], 0.001, forced=[run])
    record.stepped(plan(7, decodes), work(8), [], 0.001, failed_loads=[3])
    record.close()
    *_, failed, forced, loaded = lines(sink.content)
    assert failed[-3:] == [[3], [], []]
    assert loaded[-3:] == [[], [3], []]
    assert forced[-3:] == [[], [], [[3, 2]]]
    assert [line[0] for line in lines(sink.content)[1:]] == [
        "step",
        "step",
        "step",
        "step",
        "same",
        "step",
        "step",
        "step",
    ]


def test_a_failed_step_is_told_from_one_that_gave_no_end():
    sink = Keep()
    record = recorder(sink)
    record.stepped(plan(0, np.array([0])), work(0), [], 0.001)
    record.failed(plan(1, np.array([0])), work(1), 0.001)
    record.close()
    assert [line[5] for line in lines(sink.content)[1:]] == [[], None]
