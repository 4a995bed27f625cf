"""Recorded steps are read by the twin's calibration."""

from pathlib import Path

from inflight_cost.model import CostModel, StepWork
from inflight_engine.recording.reader import Recording
from inflight_settings.limits import Limits
from inflight_simulator.calibrate import fit_cost, read_steps
from inflight_vllm.record import StepRecord

SIZES = {"num_blocks": 1000, "block_size": 16, "max_model_len": 2048, "prefix_caching": False}


def test_calibration_reads_the_steps_of_a_record(tmp_path):
    cost = CostModel(0.004, 0.0005, 0.0001, 1e-6, 1e-8)
    record = StepRecord(tmp_path / "steps", Limits(64, 2048), SIZES)
    works = [StepWork(step % 17, (step % 5) * 32, (step % 17) * 300, (step % 5) * 4000) for step in range(300)]
    for work in works:
        record.step(work, cost.seconds(work))
    record.flush()
    config = Recording(tmp_path / "steps").header.config
    assert (config.capacity, config.prefix_caching, config.kv_headroom) == (Limits(64, 2048), False, 0)
    found, seconds = read_steps(tmp_path / "steps")
    assert found.tolist() == [list(work) for work in works]
    fit = fit_cost(found, seconds)
    assert fit.median_error < 0.01
    assert not fit.poor


def test_a_full_disk_ends_the_record_and_not_the_engine(caplog):
    record = StepRecord(Path("/dev/null"), Limits(64, 2048), SIZES)
    record._file = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    record.step(StepWork(1, 0, 5, 0), 0.01)
    record.step(StepWork(1, 0, 6, 0), 0.01)
    record.flush()
    assert [each.message for each in caplog.records] == [
        "inflight: steps cannot be recorded any more: No space left on device"
    ]
