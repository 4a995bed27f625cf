"""Quantized weights that stay quantized, by device and options."""

import logging

import pytest
import torch

from inflight_engine.execution.load import kept_formats, load_config, load_model
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.linear import NONE_KEPT
from inflight_engine.models.parallel import ALONE
from inflight_settings.engine import EngineConfig
from tests.engine.execution.tiny_model import make_model
from tests.engine.models.packed_checkpoint import awq, write_checkpoint

BF16 = torch.bfloat16


def kept(capability, dtype=BF16, *, batch_invariant=False):
    return kept_formats(capability, dtype, batch_invariant=batch_invariant)


def test_gpus_since_ada_keep_float8_and_4_bits():
    for capability in ((8, 9), (9, 0), (10, 0), (12, 0)):
        assert (kept(capability).why_not_fp8, kept(capability).why_not_int4) == (None, None)


def test_a_cpu_keeps_neither():
    assert kept(None) is NONE_KEPT


@pytest.mark.parametrize(
    ("found", "why_not_fp8", "why_not_int4"),
    [
        (kept((8, 0)), "this GPU has 8.0", None),
        (kept((7, 5)), "this GPU has 7.5", "this GPU has 7.5"),
        (kept((9, 0), torch.float32), "dtype is float32", "dtype is float32"),
        (kept((9, 0), torch.float16), "dtype is float16", None),
        (kept((9, 0), batch_invariant=True), "batch_invariant", None),
    ],
)
def test_what_a_device_or_an_option_rules_out_is_said(found, why_not_fp8, why_not_int4):
    for reason, expected in ((found.why_not_fp8, why_not_fp8), (found.why_not_int4, why_not_int4)):
        assert (reason is None) == (expected is None)
        assert expected is None or expected in reason


@pytest.mark.parametrize("attention", ["auto", "torch-sdpa"])
def test_on_a_cpu_the_log_says_that_weights_are_dequantized(tmp_path, attention, caplog):
    """Runs with the CPU kernels, where they are built, and with torch."""
    make_model(tmp_path, "llama-gqa-untied", {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4})
    write_checkpoint(tmp_path, awq())
    files, config = ModelFiles("test", tmp_path), EngineConfig(str(tmp_path), attention_backend=attention)
    with caplog.at_level(logging.INFO):
        load_model(config, files, load_config(files), torch.float32, torch.device("cpu"), ALONE)
    assert len([message for message in caplog.messages if "dequantized" in message]) == 1
