"""A recording says what each step computed: enough for a cost model to be fitted to it."""

import pytest

from inflight_simulator.calibrate import read_steps
from tests.engine.recording.workload import Workload, config


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_step_log_of_a_recording_says_what_each_step_computed(tmp_path, preemption, seed):
    path = tmp_path / "run.gz"
    run = Workload(config(preemption=preemption), seed)
    path.write_bytes(run.run(2000))
    works, seconds = read_steps(path)
    # All but the steps that failed.
    assert len(works) == len(run.work) == run.num_steps - run.failed
    for number, (work, took, (expected_took, *expected)) in enumerate(zip(works, seconds, run.work, strict=True)):
        assert work.tolist() == expected, f"step {number}"
        assert took == pytest.approx(expected_took)
    assert works[:, -1].any() == (preemption == "swap")
