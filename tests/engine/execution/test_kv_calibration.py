"""An fp8 cache is scaled for the keys and values that the model makes, or as its checkpoint says."""

import logging
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from inflight_engine.execution import build
from inflight_engine.execution.kv_calibration import calibrate, calibration_tokens
from inflight_engine.execution.load import load_model
from inflight_engine.models.parallel import ALONE, SingleProcess
from inflight_settings.engine import EngineConfig
from tests.engine.execution.tiny_model import VOCAB, make_model

LENGTH = 50


def loaded(folder, parallel=ALONE):
    """(target, spec of a cache in fp8, model)."""
    options = {"dtype": "float32", "device": "cpu", "block_size": 16, "max_num_batched_tokens": LENGTH}
    config = EngineConfig(str(folder), attention_backend="torch-sdpa", **options)
    target = build.choose_target(config)
    _, spec = build.choose_attention(config, target, parallel)
    model = load_model(config, target.files, target.model_config, target.dtype, target.device, parallel)
    return target, replace(spec, cache_dtype=torch.float8_e4m3fn), model


@pytest.mark.parametrize("kind", ["llama-gqa-untied", "qwen3"])
def test_scales_leave_room_for_twice_the_largest_number_of_each_head(tmp_path, kind):
    reference = make_model(tmp_path, kind)
    _, spec, model = loaded(tmp_path)
    scales = calibrate(model, spec)
    with torch.inference_mode():
        # transformers too caches keys as they are after the rotation.
        cached = reference(calibration_tokens(LENGTH, VOCAB)[None], use_cache=True).past_key_values.layers
    for layer in range(3):
        for which, rows in enumerate((cached[layer].keys, cached[layer].values)):  # [1, kv_heads, tokens, D]
            torch.testing.assert_close(448 * scales[layer, which], 2 * rows[0].abs().amax((1, 2)))


def test_a_head_of_zeros_has_a_scale_of_1(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.self_attn.v_proj.weight"][8:] = 0
    save_file(tensors, file, {"format": "pt"})
    _, spec, model = loaded(tmp_path)
    scales = calibrate(model, spec)
    assert scales[1, 1, 1] == 1
    assert (scales[1, 1, 0] < 0.2) & (scales[1, 1, 0] > 0)


def test_keys_that_are_not_finite_are_refused(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.2.self_attn.k_proj.weight"][:] = 1e38
    save_file(tensors, file, {"format": "pt"})
    _, spec, model = loaded(tmp_path)
    with pytest.raises(ValueError, match="kv_cache_dtype fp8: keys or values of layer 2 are not finite in"):
        calibrate(model, spec)


def test_the_checkpoints_scales_come_first_and_each_rank_has_those_of_its_heads(tmp_path, caplog):
    make_model(tmp_path, "llama-gqa-untied")
    target, spec, model = loaded(tmp_path)
    with caplog.at_level(logging.INFO):
        calibrated = build.choose_kv_scales(target, spec, model, ALONE)
    assert torch.equal(calibrated.kv_scales, calibrate(model, spec))
    assert "KV cache in fp8: scales calibrated with random tokens, of keys 0.0" in caplog.text
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for layer in range(3):
        tensors[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor([0.5, 0.25])
        tensors[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor([4.0, 2.0])
    save_file(tensors, file, {"format": "pt"})

    class SecondOfTwo(SingleProcess):
        rank, size = 1, 2

    shape = target.model_config.shape.for_rank(2)
    with caplog.at_level(logging.INFO):
        stored = build.choose_kv_scales(target, replace(spec, shape=shape), model, SecondOfTwo())
    assert stored.kv_scales.tolist() == [[[0.25], [2.0]]] * 3
    assert "scales of the checkpoint, of keys 0.25 to 0.25, of values 2 to 2" in caplog.text


def test_another_cache_has_no_scales(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    target, spec, model = loaded(tmp_path)
    spec = replace(spec, cache_dtype=spec.dtype)
    assert build.choose_kv_scales(target, spec, model, ALONE) is spec
