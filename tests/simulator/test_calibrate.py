import gzip
from dataclasses import astuple, replace

import msgspec
import numpy as np
import pytest

from inflight_cost.model import CostModel, StepWork
from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import Request, SamplingParams
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_work import work_of
from inflight_settings.limits import Limits
from inflight_simulator.calibrate import fit_cost, read_steps
from inflight_simulator.cli import main
from inflight_simulator.cost import LLAMA_8B_H100, read_cost
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.commands.replica_file import read_replica
from tests.simulator.support import scheduler_config

TRUE = CostModel(
    base_s=0.03,
    decode_seq_s=0.002,
    prefill_token_s=0.0011,
    decode_kv_token_s=3e-6,
    prefill_context_token_s=2e-7,
    copied_token_s=5e-5,
)


def steps(count=600, seed=0, copies=True):
    """[count, numbers of StepWork] and what they cost."""
    random = np.random.RandomState(seed)
    decodes = random.randint(0, 40, count)
    prefill = np.where(random.rand(count) < 0.4, random.randint(1, 512, count), 0)
    prefill[decodes == 0] += 1
    works = np.column_stack(
        [
            decodes,
            prefill,
            decodes * random.randint(50, 1500, count),
            prefill * random.randint(1, 2000, count),
            np.where(random.rand(count) < 0.05, 512, 0) * copies,
        ]
    ).astype(float)
    return works, np.array([TRUE.seconds(StepWork(*work)) for work in works])


def assert_close(fitted, true, tolerance):
    for name in CostModel.__dataclass_fields__:
        assert getattr(fitted, name) == pytest.approx(getattr(true, name), rel=tolerance), name


def test_exact_steps_give_the_exact_model():
    fit = fit_cost(*steps())
    assert_close(fit.cost, TRUE, 1e-6)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.median_error < 1e-7
    assert (fit.unseen, fit.poor, fit.num_steps, fit.cost.curve) == ((), False, 600, ())


def test_noise_of_a_tenth_and_hiccups_move_it_little():
    works, seconds = steps(5000)
    random = np.random.RandomState(1)
    seconds = seconds * random.lognormal(0, 0.1, len(seconds))
    seconds[random.rand(len(seconds)) < 0.005] += 3.0
    fit = fit_cost(works, seconds)
    assert 0.03 < fit.median_error < 0.1
    assert not fit.poor
    others, clean = steps(seed=9)
    predicted = np.array([fit.cost.seconds(StepWork(*work)) for work in others])
    assert np.abs(predicted / clean - 1).max() < 0.1
    assert np.median(predicted / clean) == pytest.approx(1, abs=0.02)


def test_a_factor_of_what_no_step_did_keeps_the_default_and_is_named():
    fit = fit_cost(*steps(copies=False))
    assert fit.unseen == ("copied_token_s",)
    assert fit.cost.copied_token_s == LLAMA_8B_H100.copied_token_s


def test_no_factor_is_below_zero_where_plain_least_squares_would_have_one():
    works, seconds = steps()
    seconds = seconds - works[:, 0] * (TRUE.decode_seq_s + 0.0003)
    matrix = np.column_stack([np.ones(len(seconds)), works])
    assert np.linalg.lstsq(matrix / seconds[:, None], np.ones(len(seconds)), rcond=None)[0].min() < 0
    fit = fit_cost(works, seconds)
    assert fit.cost.decode_seq_s == 0.0
    assert min(astuple(fit.cost)[:-1]) == 0.0


def test_a_machine_that_is_not_linear_in_tokens_gets_a_curve_and_a_close_fit():
    works, _ = steps(4000)
    tokens = works[:, 0] + works[:, 1]
    seconds = np.interp(tokens, [1, 15, 16, 128, 600], [0.04, 0.12, 0.1, 0.2, 0.6]) + 3e-6 * works[:, 2]
    fit = fit_cost(works, seconds)
    assert fit.median_error < 0.01
    predicted = np.array([fit.cost.seconds(StepWork(*work)) for work in works])
    assert np.median(np.abs(predicted / seconds - 1)) == pytest.approx(fit.median_error, rel=0.01)
    assert fit.cost.seconds(StepWork(16, 0, 0, 0, 0)) < 0.95 * fit.cost.seconds(StepWork(14, 0, 0, 0, 0))
    assert fit.cost.decode_kv_token_s == pytest.approx(3e-6, rel=0.05)


def test_a_curve_of_decodes_alone_leaves_prefill_at_its_default():
    works, _ = steps(800)
    works[:, 0], works[:, 1], works[:, 3] = works[:, 0] + 1, 0, 0
    seconds = np.interp(works[:, 0], [1, 15, 16, 40], [0.03, 0.12, 0.08, 0.2]) + 3e-6 * works[:, 2]
    fit = fit_cost(works, seconds)
    assert fit.cost.curve
    assert fit.unseen == ("prefill_token_s", "prefill_context_token_s")
    for name in fit.unseen:
        assert getattr(fit.cost, name) == getattr(LLAMA_8B_H100, name) > 0


def test_a_curve_is_interpolated_stays_before_its_first_point_and_goes_on_after_its_last():
    cost = replace(LLAMA_8B_H100, base_s=0, decode_seq_s=0, decode_kv_token_s=0, curve=((2.0, 0.5), (4.0, 1.5)))
    assert [cost.seconds(StepWork(n, 0, 0, 0, 0)) for n in (1, 2, 3, 4, 6)] == [0.5, 0.5, 1.0, 1.5, 2.5]


def test_a_curve_that_falls_at_its_end_stays_there():
    cost = replace(LLAMA_8B_H100, base_s=0, decode_seq_s=0, decode_kv_token_s=0, curve=((2.0, 0.5), (4.0, 0.4)))
    assert cost.seconds(StepWork(40, 0, 0, 0, 0)) == 0.4


def test_noise_between_its_last_points_does_not_decide_how_a_curve_goes_on():
    cost = replace(
        LLAMA_8B_H100,
        base_s=0,
        prefill_token_s=0,
        prefill_context_token_s=0,
        curve=((2, 0.1), (255, 0.5), (511, 1.0)),
    )
    noisy = replace(cost, curve=(*cost.curve, (512.0, 1.1)))
    for each in (cost, noisy):
        assert each.seconds(StepWork(0, 1024, 0, 0, 0)) == pytest.approx(2.1, rel=0.1)


def test_times_that_have_nothing_to_do_with_the_work_are_a_poor_fit():
    works, seconds = steps()
    assert fit_cost(works, np.random.RandomState(2).lognormal(0, 1, len(seconds))).poor


@pytest.fixture
def recording(tmp_path):
    """A recorded run with preemptions and copies whose steps take what TRUE says; (path, works)."""
    config = scheduler_config(
        max_num_seqs=6, max_num_batched_tokens=64, num_blocks=40, preemption="swap", num_host_blocks=40
    )
    path = tmp_path / "run.gz"
    scheduler = Scheduler(config)
    recorder = Recorder(config, path.open("wb"), is_cached=lambda block: False, kv_bytes_per_token=131_072)
    random = np.random.RandomState(3)
    for request_id in range(60):
        prompt = np.full(random.randint(1, 200), request_id, np.int32)
        request = Request(request_id, prompt, SamplingParams(max_tokens=int(random.randint(1, 150))), 0.0)
        scheduler.add(request)
        recorder.added(request)
    works, known, loaded = [], {}, 0
    while (plan := scheduler.schedule()) is not None:
        planned = work_of(plan, scheduler.num_attended_tokens, config.block_size)
        num_loaded = sum(len(each.host_block_ids) for each in plan.starts)
        copied = (num_loaded + (0 if plan.stores is None else len(plan.stores.block_ids))) * 16
        loaded += num_loaded
        for start in plan.starts:
            known[start.slot] = len(start.token_ids)
        decodes = plan.decode_slots.tolist()
        work = StepWork(
            len(decodes),
            sum(chunk.length for chunk in plan.prefills),
            sum(known[slot] for slot in decodes),
            sum(sum(range(chunk.start + 1, chunk.start + chunk.length + 1)) for chunk in plan.prefills),
            copied,
        )
        works.append(work)
        sampled = plan.sampled_slots
        for slot in sampled.tolist():
            known[slot] += 1
        ended = scheduler.update(plan, np.zeros(len(sampled), np.int32))
        recorder.stepped(plan, planned, ended, TRUE.seconds(work))
    recorder.close()
    assert loaded > 3
    return path, works


def test_what_each_step_computed_is_read_from_a_recording(recording):
    path, works = recording
    read, seconds = read_steps(path)
    assert read.tolist() == [list(map(float, work)) for work in works]
    assert seconds == pytest.approx([TRUE.seconds(work) for work in works], abs=1e-6)


def test_calibrate_writes_a_cost_model_that_the_simulator_takes(recording, tmp_path, capsys):
    path, works = recording
    out = tmp_path / "cost.json"
    assert main(["calibrate", str(path), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"{len(works)} steps" in printed.out
    assert "--cost-base-ms" in printed.out
    assert "R2 1.000" in printed.out
    assert printed.err == ""
    assert_close(read_cost(out), TRUE, 0.02)
    trace = tmp_path / "one.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,1\n")
    assert main(["engine", str(trace), "--cost", str(out), "--json"]) == 0
    ttft = msgspec.json.decode(capsys.readouterr().out)["ttft"]["mean"]
    assert ttft == pytest.approx(TRUE.seconds(StepWork(0, 100, 0, 5050, 0)), rel=0.01)


def test_calibrate_writes_a_replica_with_the_sizes_of_the_recorded_engine(recording, tmp_path, capsys):
    path, _ = recording
    out, trace = tmp_path / "replica.json", tmp_path / "one.csv"
    assert main(["calibrate", str(path), "--replica", str(out)]) == 0
    capsys.readouterr()
    replica = read_replica(out)
    assert_close(replica.cost, TRUE, 0.02)
    assert (replica.kv_tokens, replica.block_size, replica.capacity) == (40 * 16, 16, Limits(6, 64))
    assert (replica.host_tokens, replica.kv_bytes_per_token) == (40 * 16, 131_072)
    assert replica.noise < 0.01
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,1\n")
    flags = ["--replica", str(out), "--ttft", "10", "--limits", "fixed:6/128", "--json"]
    assert main(["fleet", str(trace), "--scaler", "fixed:1", *flags]) == 0
    ttft = msgspec.json.decode(capsys.readouterr().out)["ttft"]["mean"]
    assert ttft == pytest.approx(TRUE.seconds(StepWork(0, 100, 0, 5050, 0)), rel=0.02)


def test_the_noise_of_a_replica_is_that_of_its_steps():
    works, seconds = steps(5000)
    noisy = seconds * np.random.RandomState(1).lognormal(0, 0.1, len(seconds))
    assert fit_cost(works, noisy).noise == pytest.approx(0.1, rel=0.1)


def test_a_poor_fit_is_said(tmp_path, capsys):
    config = scheduler_config()
    path = tmp_path / "run.gz"
    scheduler, recorder = Scheduler(config), Recorder(config, path.open("wb"), is_cached=lambda block: False)
    random = np.random.RandomState(5)
    for request_id in range(30):
        request = Request(request_id, np.full(20, request_id, np.int32), SamplingParams(max_tokens=20), 0.0)
        scheduler.add(request)
        recorder.added(request)
    while (plan := scheduler.schedule()) is not None:
        work = work_of(plan, scheduler.num_attended_tokens, config.block_size)
        ended = scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
        recorder.stepped(plan, work, ended, random.lognormal(-3, 1))
    recorder.close()
    assert main(["calibrate", str(path)]) == 0
    assert "the fit is poor" in capsys.readouterr().err


def test_a_fit_that_no_simulation_takes_is_not_written(tmp_path, capsys):
    config = scheduler_config()
    path, out = tmp_path / "run.gz", tmp_path / "cost.json"
    scheduler, recorder = Scheduler(config), Recorder(config, path.open("wb"), is_cached=lambda block: False)
    request = Request(0, np.full(20, 1, np.int32), SamplingParams(max_tokens=50), 0.0)
    scheduler.add(request)
    recorder.added(request)
    context = 20
    while (plan := scheduler.schedule()) is not None:
        work = work_of(plan, scheduler.num_attended_tokens, config.block_size)
        ended = scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
        recorder.stepped(plan, work, ended, 1e-3 * context)
        context += 1
    recorder.close()
    assert main(["calibrate", str(path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert f"{path}: too little varies in it" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"hello\n", "is no recording"), (gzip.compress(b"[1]\n", mtime=0), "is no recording")],
)
def test_what_is_no_recording_is_named_with_exit_status_2(tmp_path, capsys, content, message):
    path = tmp_path / "run.gz"
    path.write_bytes(content)
    assert main(["calibrate", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in error


def test_a_recording_without_steps_or_with_too_few_is_an_error(tmp_path, capsys):
    config = scheduler_config()
    path = tmp_path / "run.gz"
    Recorder(config, path.open("wb"), is_cached=lambda block: False).close()
    assert main(["calibrate", str(path)]) == 2
    assert "no steps in it" in capsys.readouterr().err
    works, seconds = steps(5)
    with pytest.raises(ValueError, match="5 steps are too few"):
        fit_cost(works, seconds)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "Expected `object`"),
        ('{"base_s": "x"}', "Expected `float`, got `str` - at `$.base_s`"),
        ('{"bas": 1}', "unknown field `bas`"),
        ('{"decode_seq_s": -1}', "decode_seq_s must be 0 or more"),
        ('{"base_s": 0, "prefill_token_s": 0}', "each step takes time"),
    ],
)
def test_a_bad_cost_file_is_named(tmp_path, content, message):
    path = tmp_path / "cost.json"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read_cost(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
