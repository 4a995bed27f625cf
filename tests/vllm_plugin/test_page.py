"""The plugin's metrics, as the operator reads them."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from inflight_cost.model import CostModel
from inflight_operator.observe.metrics import parse_metrics
from inflight_settings.limits import Limits, PartialLimits
from inflight_vllm.board import Board, Report
from inflight_vllm.drain import Drain
from inflight_vllm.guard import Guard
from inflight_vllm.limits import LiveLimits
from inflight_vllm.page import PluginMetrics


def page(limits, drain=None):
    registry = CollectorRegistry()
    metrics = PluginMetrics("0.32.0", limits, drain or Drain(0, 0, lambda: None), Guard())
    metrics.model_name = "chat"
    registry.register(metrics)
    vllm = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    return generate_latest(registry).decode() + vllm


@pytest.fixture
def board(tmp_path):
    return Board.create(tmp_path / "state")


def test_the_operator_reads_limits_demand_and_cost(board):
    cost = CostModel(0.01, 0.002, 0.003, 1e-6, 1e-7, 0.0, curve=((1.0, 0.5), (8.0, 0.9)))
    board.report.write(
        Report(
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            block_size=16,
            num_blocks=100,
            arrived=(5, 50, 700),
            waiting_prompt_tokens=12,
            output_mean=30.0,
            output_square=1200.0,
            cost=cost,
            cost_error=0.05,
            cost_steps=99.0,
        )
    )
    limits = LiveLimits(board, None)
    limits.start(None)
    limits.change(PartialLimits(8, 256), 4)
    sample = parse_metrics(page(limits), 1.0)
    assert (sample.limits, sample.capacity, sample.revision) == (Limits(8, 256), Limits(64, 2048), 4)
    assert (sample.arrived, sample.arrived_tokens, sample.arrived_squares) == (5, 50, 700)
    assert (sample.waiting_prompt_tokens, sample.kv_tokens) == (12, 1600)
    assert (sample.output_mean, sample.output_square) == (30, 1200)
    assert (sample.cost, sample.cost_error, sample.cost_steps) == (cost, 0.05, 99)


def test_before_the_first_step_there_is_no_cost_and_no_output(board):
    board.report.write(Report(max_num_seqs=64, max_num_batched_tokens=2048))
    limits = LiveLimits(board, None)
    limits.start(None)
    sample = parse_metrics(page(limits), 1.0)
    assert (sample.cost, sample.output_mean, sample.limits) == (None, None, Limits(64, 2048))


def test_refused_requests_and_a_drain_are_counted(board):
    board.report.write(Report(max_num_seqs=64, max_num_batched_tokens=2048))
    drain = Drain(0, 0, lambda: None)
    drain.draining, drain.refused = True, 3
    text = page(LiveLimits(board, None), drain)
    assert 'inflight_draining{model_name="chat"} 1.0' in text
    assert 'inflight_admission_rejections_total{model_name="chat",reason="draining"} 3.0' in text


def test_an_unsupported_vllm_has_the_reason_and_no_limits(board):
    text = page(LiveLimits(board, 'no "known" vLLM'))
    assert 'state="unsupported"' in text
    assert r'reason="no \"known\" vLLM"' in text
    assert 'vllm_version="0.32.0"' in text
    assert parse_metrics(text, 1.0).limits is None


def test_a_page_reads_the_report_once(board, monkeypatch):
    board.report.write(Report(max_num_seqs=64, max_num_batched_tokens=2048))
    limits = LiveLimits(board, None)
    reads, read = [], board.report.read
    monkeypatch.setattr(board.report, "read", lambda: reads.append(1) or read())
    page(limits)
    assert len(reads) == 1


def test_a_report_that_cannot_be_read_leaves_vllms_own_page(board, monkeypatch, caplog):
    board.report.write(Report(max_num_seqs=64, max_num_batched_tokens=2048))
    limits = LiveLimits(board, None)
    board.report.write(Report(arrived="x"))
    text = page(limits)
    assert 'reason="the plugin failed: ValidationError",state="unsupported"' in text
    assert "vllm:num_requests_running 0" in text
    assert "inflight_max_num_seqs" not in text
    assert "the plugin failed" in caplog.text
