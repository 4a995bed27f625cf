"""Linear layers over quantized weights compute what they mean, and what cannot stay quantized is dequantized."""

import json
import logging
import re
import shutil
import threading

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.models.linear import NONE_KEPT, Fp8Linear, Int4Linear, KeptFormats, LinearMaker, PlainLinear
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.matrices import Fp8Matrix, GroupedMatrix
from inflight_engine.models.ops import TorchOps
from inflight_engine.models.parallel import ALONE
from tests.engine.execution.test_parallel import Causal, Threads
from tests.engine.execution.tiny_model import make_model
from tests.engine.models.packed_checkpoint import awq, gptq, pack_quantized, write_checkpoint

CPU = torch.device("cpu")
ALL_KEPT = KeptFormats(None, None)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def maker(dtype=torch.float32, kept=ALL_KEPT):
    return LinearMaker(dtype, CPU, TorchOps(), kept)


def fp8_matrix(outputs, inputs, seed=1):
    weight = torch.randn(outputs, inputs, generator=generator(seed))
    scales = weight.abs().amax(1) / 448
    return Fp8Matrix((weight / scales[:, None]).to(torch.float8_e4m3fn), scales)


def grouped_matrix(outputs, inputs, group_size=32, *, bits=4, groups=None, seed=1):
    rng = generator(seed)
    num_groups = inputs // group_size
    return GroupedMatrix(
        torch.randint(0, 2**bits, (outputs, inputs), generator=rng, dtype=torch.uint8),
        torch.rand(outputs, num_groups, generator=rng).half() / 8,
        torch.randint(0, 17, (outputs, num_groups), generator=rng, dtype=torch.int16),
        torch.arange(inputs) // group_size if groups is None else groups,
        bits,
    )


def test_float8_products_round_each_token_by_a_scale_of_its_own():
    first, second = fp8_matrix(32, 64), fp8_matrix(16, 64, seed=2)
    bias = torch.randn(48, generator=generator(3))
    linear = maker().make([first, second], bias)
    assert isinstance(linear, Fp8Linear)
    x = torch.randn(5, 64, generator=generator(4)) * torch.tensor([1e-3, 1.0, 1e3, 1.0, 0.0])[:, None]
    scales = (x.abs().amax(1, keepdim=True) / 448).clamp(min=1e-9)
    rounded = (x / scales).to(torch.float8_e4m3fn).float() * scales
    weight = torch.cat([each.values.float() * each.scales[:, None] for each in (first, second)])
    torch.testing.assert_close(linear(x[:0]), torch.empty(0, 48))
    torch.testing.assert_close(linear(x), rounded @ weight.t() + bias, rtol=1e-5, atol=1e-4)
    # The rounding itself: a fp8 number has three bits after its first.
    exact = x @ weight.t() + bias
    assert ((linear(x) - exact).norm(dim=1) <= 0.06 * exact.norm(dim=1)).all()


@pytest.mark.parametrize("half", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_4_bits_equal_those_with_dequantized_weights(half, dtype):
    matrices = [grouped_matrix(size, 512, half, seed=size) for size in (24, 8)]
    bias = torch.randn(32, generator=generator(3)).to(dtype)
    linear = maker(dtype).make(matrices, bias)
    assert isinstance(linear, Int4Linear)
    assert linear.matrix.half == half
    assert linear.matrix.packed.nbytes == 32 * 512 / 2
    x = torch.randn(3, 512, generator=generator(4)).to(dtype)
    weight = torch.cat([each.dequantized(dtype) for each in matrices])
    assert torch.equal(linear(x), F.linear(x, weight, bias))


def test_integers_and_zeros_mean_what_torchs_own_kernel_for_4_bits_takes_them_for():
    matrix = grouped_matrix(32, 128)
    scales = matrix.scales.float()
    zeros = (8 - matrix.zeros) * scales
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.integers.int(), 1)
    pairs = torch.stack([scales, zeros], dim=2).transpose(0, 1).contiguous()
    x = torch.randn(3, 128, generator=generator())
    expected = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, pairs)
    torch.testing.assert_close(maker().make([matrix], None)(x), expected, rtol=1e-4, atol=1e-4)


def test_inputs_in_any_order_are_put_in_the_order_of_their_groups():
    groups = torch.randperm(128, generator=generator()) // 32
    matrices = [grouped_matrix(16, 128, groups=groups, seed=seed) for seed in (1, 2)]
    linear = maker().make(matrices, None)
    assert isinstance(linear, Int4Linear)
    x = torch.randn(3, 128, generator=generator(4))
    expected = x @ torch.cat([each.dequantized(torch.float32) for each in matrices]).t()
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-4)


def whole_and_cut():
    whole = grouped_matrix(16, 192)
    return GroupedMatrix(whole.integers[:, 16:80], whole.scales[:, :3], whole.zeros[:, :3], whole.group_of[16:80], 4)


@pytest.mark.parametrize(
    ("matrices", "kept", "reason"),
    [
        ([fp8_matrix(32, 64)], NONE_KEPT, "products with float8 need a GPU"),
        ([fp8_matrix(32, 72)], ALL_KEPT, r"their dimensions \[32, 72\] are not multiples of 16"),
        ([fp8_matrix(40, 64)], ALL_KEPT, r"their dimensions \[40, 64\] are not multiples of 16"),
        ([fp8_matrix(32, 64), torch.ones(16, 64)], ALL_KEPT, "only some of the fused projections"),
        ([grouped_matrix(8, 64)], KeptFormats(None, "no triton"), "no triton"),
        ([grouped_matrix(8, 64, bits=8)], NONE_KEPT, "they have 8 bits"),
        ([grouped_matrix(8, 96)], ALL_KEPT, "96 inputs in groups of 32 are no whole blocks of 64"),
        ([grouped_matrix(8, 128, 16)], ALL_KEPT, "128 inputs in groups of 16 are no whole blocks of 64"),
        ([whole_and_cut()], ALL_KEPT, "groups differ in size"),
        (
            [grouped_matrix(8, 64), grouped_matrix(8, 64, groups=torch.arange(64) % 2)],
            ALL_KEPT,
            "differ in the order of their inputs",
        ),
    ],
)
def test_what_cannot_stay_quantized_is_dequantized_and_the_log_says_why(matrices, kept, reason, caplog):
    made = maker(torch.bfloat16, kept)
    linear = made.make(matrices, None)
    assert isinstance(linear, PlainLinear)
    plain = [each if isinstance(each, torch.Tensor) else each.dequantized(torch.bfloat16) for each in matrices]
    assert torch.equal(linear.weight, torch.cat(plain).bfloat16())
    with caplog.at_level(logging.INFO):
        made.log_counts()
    assert caplog.messages[0].startswith("quantized weights of 1 linear layers are dequantized to bfloat16: ")
    assert re.search(reason, caplog.messages[0])


SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
IDS = torch.arange(12) * 7 % 97


def logits_of(folder, kept, parallel=ALONE):
    files = ModelFiles("test", folder)
    config = load_model_config(files)
    weights = open_weights(files, config)
    model = LlamaModel(config, weights, torch.float32, CPU, TorchOps(), 64, parallel, kept)
    with torch.inference_mode():
        return model.logits(model.hidden_states(IDS, torch.arange(len(IDS)), Causal()))


def dequantized_logits(folder, model, kind):
    """Writes a quantized checkpoint, and computes with a plain one of the same meaning."""
    make_model(folder / "plain", model, SIZES)
    shutil.copytree(folder / "plain", folder, dirs_exist_ok=True)
    save_file(write_checkpoint(folder, kind), folder / "plain" / "model.safetensors", {"format": "pt"})
    return logits_of(folder / "plain", NONE_KEPT)


@pytest.mark.parametrize(
    "kind", [awq(), gptq(act_order=True), pack_quantized(symmetric=False)], ids=["awq", "gptq, act-order", "packed"]
)
def test_a_model_with_weights_of_4_bits_has_the_logits_of_the_dequantized_weights(tmp_path, kind, caplog):
    expected = dequantized_logits(tmp_path, "qwen2", kind)
    with caplog.at_level(logging.INFO):
        torch.testing.assert_close(logits_of(tmp_path, ALL_KEPT), expected, rtol=1e-4, atol=1e-4)
    assert caplog.messages == ["8 linear layers keep their quantized weights"]


def test_a_model_in_float8_has_the_logits_of_dequantized_weights_and_rounded_activations(tmp_path, caplog, monkeypatch):
    make_model(tmp_path, "qwen2", SIZES)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in list(tensors.items()):
        if name.endswith("_proj.weight"):
            scales = tensor.abs().amax(1, keepdim=True) / 448
            tensors |= {name: (tensor / scales).to(torch.float8_e4m3fn), f"{name}_scale": scales}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fbgemm_fp8"}}))
    with caplog.at_level(logging.INFO):
        found = logits_of(tmp_path, ALL_KEPT)
    assert caplog.messages == ["8 linear layers keep their quantized weights"]

    def product_of_rounded(linear, x):
        rows, scales = TorchOps().quantize_rows(x)
        return F.linear(rows.float() * scales, linear.weight, linear.bias)

    exact = logits_of(tmp_path, NONE_KEPT)
    monkeypatch.setattr(PlainLinear, "__call__", product_of_rounded)
    torch.testing.assert_close(found, logits_of(tmp_path, NONE_KEPT), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(found, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "size"), [(awq(), 2), (gptq(act_order=True), 2), (pack_quantized(), 4)], ids=["awq", "act-order", "cut"]
)
def test_ranks_with_parts_of_the_weights_have_the_logits_of_the_whole(tmp_path, kind, size):
    """With four ranks, each has 16 of the output projection's inputs: half of a group."""
    expected = dequantized_logits(tmp_path, "llama-gqa-untied", kind)
    tensors, barrier, results = [None] * size, threading.Barrier(size, timeout=30), [None] * size

    def run(rank):
        results[rank] = logits_of(tmp_path, ALL_KEPT, Threads(rank, size, tensors, barrier))

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for logits in results:
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
