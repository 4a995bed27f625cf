"""Triton compiles a kernel again when a number that it is launched with becomes 1 or a multiple of 16, or stops being
one. So what changes from step to step is among the numbers that a kernel is not specialised on."""

import pytest

from inflight_engine.execution import few_rows, int4_matmul, invariant_matmul, triton_ops
from inflight_engine.execution.attention import triton_cache, triton_decode, triton_prefill
from inflight_engine.execution.sampling import gumbel_triton, triton_filters, triton_logits

FIXED = {
    triton_cache.write_kernel: {"key_stride", "value_stride", "key_head_stride", "value_head_stride"},
    triton_decode.decode_kernel: {"query_stride", "query_head_stride", "table_stride", "scale"},
    triton_decode.combine_kernel: set(),
    triton_prefill.prefill_kernel: {"query_stride", "query_head_stride", "table_stride", "scale"},
    triton_ops.rms_norm_kernel: {"x_stride", "eps"},
    triton_ops.rotary_kernel: {"qkv_stride", "eps"},
    triton_ops.silu_mul_kernel: {"gate_up_stride"},
    triton_ops.quantize_rows_kernel: {"x_stride"},
    int4_matmul.int4_matmul_kernel: {"N", "width", "a_stride", "span"},
    int4_matmul.add_splits_kernel: {"N"},
    int4_matmul.int4_dequantize_kernel: {"N", "K"},
    few_rows.few_rows_kernel: {"N", "a_stride"},
    invariant_matmul.matmul_kernel: {"N", "K", "a_stride_m", "a_stride_k", "b_stride_k", "b_stride_n"},
    triton_logits.bias_kernel: {"stride"},
    triton_logits.peak_kernel: {"stride", "vocab_size"},
    triton_filters.weigh_kernel: {"stride", "vocab_size"},
    triton_filters.bound_kernel: {"vocab_size"},
    triton_filters.list_kernel: {"stride", "vocab_size"},
    triton_filters.cut_kernel: {"stride", "vocab_size"},
    gumbel_triton.pick_kernel: {"stride", "vocab_size"},
    gumbel_triton.combine_kernel: {"vocab_size"},
    gumbel_triton.count_kernel: {"vocab_size"},
}
"""Numbers of the model, of the engine's longest sequence, and of how tensors lie in memory."""

TENSORS = {
    *("queries", "keys", "values", "cache", "slots", "block_table", "context_lens", "query_tiles", "out", "partials"),
    *("partial_stats", "x", "residual", "weight", "normed", "qkv", "positions", "table", "query_norm", "key_norm"),
    *("gate_up", "mixed", "a", "b", "bias", "c", "logits", "numbers", "integers", "bias_tokens", "bias_values", "met"),
    "unbiased",
    *("peaks", "histograms", "bounds", "lists", "cuts", "scores", "tokens", "chosen", "token_ids", "kv_scales", "rows"),
    *("scales", "packed", "zeros", "weights", "partials"),
}


@pytest.mark.parametrize("kernel", FIXED, ids=lambda kernel: kernel.__name__)
def test_a_kernel_is_specialised_on_nothing_that_changes_from_step_to_step(kernel):
    specialised = {each.name for each in kernel.params if not each.is_constexpr and not each.do_not_specialize}
    assert specialised - TENSORS == FIXED[kernel]


def test_biases_are_read_once_in_a_step_and_not_by_each_search_for_a_threshold():
    assert [kernel.__name__ for kernel in FIXED if "bias_tokens" in kernel.arg_names] == ["bias_kernel"]


@pytest.mark.parametrize("kernel", [kernel for kernel in FIXED if "kv_scales" in kernel.arg_names])
def test_layers_whose_scales_begin_at_other_addresses_share_a_variant(kernel):
    (scales,) = (each for each in kernel.params if each.name == "kv_scales")
    assert scales.do_not_specialize_on_alignment
