"""The step log: what each step of a recorded run computed."""

import gzip

import pytest

from inflight_engine.recording.reader import Recording, RecordingError
from inflight_engine.recording.steps import step_log
from tests.engine.recording.workload import Workload, config


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_step_log_says_what_each_step_computed(tmp_path, preemption, seed):
    path = tmp_path / "run.gz"
    run = Workload(config(preemption=preemption), seed)
    path.write_bytes(run.run(2000))
    log = list(step_log(Recording(path)))
    assert log == run.work
    assert any(entry.num_copied_tokens for entry in log) == (preemption == "swap")


def test_steps_that_failed_are_left_out(tmp_path):
    path = tmp_path / "run.gz"
    run = Workload(seed=5)
    path.write_bytes(run.run(3000))
    assert run.failed > 0
    assert len(list(step_log(Recording(path)))) == run.num_steps - run.failed


def test_a_start_of_nobody_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    header = gzip.decompress(Workload().run(0))
    path.write_bytes(header + b'["step",0,9,[],[],[[5,0,0,false]],[[0,0,3]],[],3,[]]\n')
    with pytest.raises(RecordingError, match="admits request 5 in step 0, which is not there"):
        list(step_log(Recording(path)))
