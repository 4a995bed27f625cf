"""Kernels that are compiled with the image, and found by an engine: no GPU is needed for either."""

import json
import os
import subprocess
import sys

from tests.engine.execution.tiny_model import make_model

COMPILE = """
from inflight_engine.execution import shipped_kernels
shipped_kernels.only_compile(90)
shipped_kernels.launch_all(shipped_kernels.Sizes(256, 512, 4, 2, 64, 512, True), 1, has_fp8=False)
"""

LISTEN = """
import atexit, json, sys
from pathlib import Path
import torch
from triton import knobs
from inflight_engine.execution import shipped_kernels
from inflight_engine.execution.triton_ops import TritonOps
found = []
atexit.register(lambda: print(json.dumps(found)))
knobs.compilation.listener = lambda src, cache_hit, **others: found.append((src.name, cache_hit))
shipped_kernels.FOLDER = Path(sys.argv[1])
shipped_kernels.only_compile(90)
"""

OTHER = "TritonOps().silu_mul(torch.empty(1, 2048))"

STEPS = """
import numpy as np
from inflight_settings.engine import EngineConfig
from inflight_engine.execution import load
from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.attention.triton_paged import TritonBackend
from inflight_engine.execution.sampling.device_sampler import DeviceSampler
from inflight_engine.models.parallel import ALONE
from inflight_engine.models.checkpoints.source import ModelFiles

CPU, BF16 = torch.device("cpu"), torch.bfloat16
load._operators = lambda config, device: TritonOps()
files = ModelFiles("test", Path(sys.argv[2]))
config = load.load_config(files)
engine = EngineConfig(sys.argv[2], attention_backend="torch-sdpa", max_model_len=2048)
model = load.load_model(engine, files, config, BF16, CPU, ALONE)
attention = TritonBackend(AttentionSpec(config.shape, 40, 16, BF16, BF16, CPU, 7, 96, 2048))
sampler = DeviceSampler(7, config.shape.vocab_size, CPU)
for decodes, lengths in (([0, 2], [33, 18]), ([1], [])):
    firsts = np.cumsum([len(decodes), *lengths])
    chunks = tuple(ChunkSpan(3 + i, int(firsts[i]), length, 16) for i, length in enumerate(lengths))
    num_tokens = int(firsts[-1])
    contexts, table = np.full(len(decodes), 5), np.zeros((7, 128), np.int64)
    attention.prepare(AttentionBatch(np.arange(num_tokens), np.array(decodes), contexts, chunks, table, np.arange(3)))
    positions = torch.arange(num_tokens)
    hidden = model.hidden_states(torch.zeros_like(positions), positions, attention)
    slots = torch.arange(num_tokens) % 7
    sampler.count(slots, sampler.choose(model.logits(hidden), slots, positions))
"""

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


def run(program, *arguments, **environment):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def launched(program, kernels, cache, *arguments):
    """(name, whether it was found) of each kernel that a program launches for a Hopper GPU."""
    manager = "inflight_engine.execution.shipped_kernels:ShippedKernels"
    output = run(program, kernels, *arguments, TRITON_CACHE_DIR=str(cache), TRITON_CACHE_MANAGER=manager)
    return json.loads(output.splitlines()[-1])


def test_an_engine_finds_the_kernels_that_came_with_its_image(tmp_path):
    model, kernels, cache = tmp_path / "model", tmp_path / "kernels", tmp_path / "cache"
    make_model(model, "qwen3", SIZES)
    run(COMPILE, TRITON_CACHE_DIR=str(kernels), TRITON_STORE_BINARY_ONLY="1")
    found = launched(LISTEN + STEPS, kernels, cache, model)
    assert [name for name, is_found in found if not is_found] == []
    names = {"write_kernel", "decode_kernel", "prefill_kernel", "rms_norm_kernel", "rotary_kernel", "pick_kernel"}
    assert {name for name, _ in found} >= names
    assert list(cache.rglob("*.cubin")) == []
    assert not list(kernels.rglob("*.ptx")), "machine code only"


def test_an_engine_keeps_kernels_that_its_image_lacks_in_its_own_cache(tmp_path):
    for is_found in (False, True):
        assert launched(LISTEN + OTHER, tmp_path / "none", tmp_path / "cache") == [["silu_mul_kernel", is_found]]
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 1
