"""The step that memory is measured on is the largest that there can be, and runs; the rest is arithmetic."""

from dataclasses import replace

import pytest
import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.load import load_config, load_model
from inflight_engine.execution.memory_profile import (
    blocks_of_largest_step,
    graph_bytes,
    largest_batch,
    run_largest_step,
)
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.parallel import ALONE
from inflight_settings.engine import EngineConfig
from tests.engine.execution.padded_backend import PaddedBackend
from tests.engine.execution.sampling.gumbel import PlainSampler
from tests.engine.execution.tiny_model import make_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    return folder


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "lengths"),
    [
        (8, 100, 256, [100]),
        (8, 100, 30, [30, 30, 30, 10]),
        (2, 100, 30, [30, 30]),  # two sequences are never more than this
        (8, 60, 30, [30, 30]),
    ],
)
def test_the_largest_step_fills_the_budget_with_sequences_of_full_length(
    folder, max_num_seqs, max_num_batched_tokens, max_model_len, lengths
):
    config = EngineConfig(str(folder), dtype="float32", device="cpu", attention_backend="torch-sdpa")
    files = resolve(str(folder), "main")
    model_config = load_config(files)
    spec = AttentionSpec(
        model_config.shape,
        0,
        16,
        torch.float32,
        torch.float32,
        CPU,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
    )
    batch = largest_batch(spec)
    assert [chunk.length for chunk in batch.chunks] == lengths
    assert [chunk.first for chunk in batch.chunks] == [sum(lengths[:i]) for i in range(len(lengths))]
    assert len(batch.kv_slots) == sum(lengths)
    spec = replace(spec, num_blocks=blocks_of_largest_step(spec))
    assert batch.kv_slots.max() < spec.num_blocks * 16
    model = load_model(config, files, model_config, torch.float32, CPU, ALONE)
    drawn = []
    logits = model.logits
    model.logits = lambda hidden: drawn.append(len(hidden)) or logits(hidden)
    run_largest_step(model, PaddedBackend(spec), PlainSampler(max_num_seqs, spec.shape.vocab_size, CPU), spec)
    assert drawn == [min(max_num_seqs, sum(lengths)), sum(lengths)], "rows that are sampled from, then rows to score"


def test_the_first_graph_takes_the_pool_and_the_second_stands_for_all_others():
    assert graph_bytes([1000, 700, 690], 5) == 300 + 4 * 10
    assert graph_bytes([1000, 700], 1) == 300
    assert graph_bytes([1000, 700, 710], 3) == 300  # somebody else gave memory back meanwhile
