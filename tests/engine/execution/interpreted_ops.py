"""The Triton kernels beside attention in Triton's interpreter, against plain torch. `test_triton_ops` runs this file
in a process of its own, because whether Triton interprets is settled when it is imported."""

import pytest
import torch

from inflight_engine.execution import few_rows, int4_matmul, invariant_matmul
from inflight_engine.execution.triton_ops import TritonOps
from inflight_engine.models.matrices import GroupedMatrix, Int4Matrix, pack_int4
from inflight_engine.models.ops import TorchOps

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
DTYPES = [torch.float32, torch.bfloat16]
PRODUCT_DTYPES = [torch.float32, torch.float16]
"""The interpreter has no products of bfloat16."""
plain, fused = TorchOps(), TritonOps()


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found, expected, dtype):
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [48, 1000])
def test_norms_equal_torchs(dtype, width):
    x, residual, weight = (
        random(3, width, dtype=dtype),
        random(3, width, dtype=dtype, seed=2),
        random(width, dtype=dtype),
    )
    strided = random(3, 2 * width, dtype=dtype)[:, :width]
    assert_close(fused.rms_norm(x, weight, 1e-5), plain.rms_norm(x, weight, 1e-5), dtype)
    assert_close(fused.rms_norm(strided, weight, 1e-5), plain.rms_norm(strided, weight, 1e-5), dtype)
    expected_normed, expected_sum = plain.add_rms_norm(x, residual.clone(), weight, 1e-5)
    normed, total = fused.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    assert_close(total, expected_sum, dtype)  # the interpreter cuts bfloat16 off where a GPU rounds
    assert_close(normed, expected_normed, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "has_norms"),
    [(9, 3, 64, False), (6, 2, 12, True), (20, 4, 128, True), (2, 1, 80, False)],
)
def test_rotary_equals_torchs(dtype, heads, kv_heads, head_dim, has_norms):
    qkv = random(4, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    table = random(50, head_dim)
    positions = torch.tensor([0, 49, 7, 7])
    norms = (random(head_dim, dtype=dtype, seed=3), random(head_dim, dtype=dtype, seed=4)) if has_norms else None
    expected = plain.rotary(qkv.clone(), positions, table, heads, kv_heads, norms, 1e-6)
    found = fused.rotary(qkv.clone(), positions, table, heads, kv_heads, norms, 1e-6)
    for one, other in zip(found, expected, strict=True):
        # torch rounds cosines, products and sums to the dtype; the kernel only the result.
        torch.testing.assert_close(one, other, atol=8 * TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [80, 1500])
def test_silu_mul_equals_torchs(dtype, width):
    gate_up = 3 * random(3, 2 * width, dtype=dtype)
    assert_close(fused.silu_mul(gate_up), plain.silu_mul(gate_up), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [80, 5000])
def test_rows_are_rounded_to_float8_as_torch_does(dtype, width):
    """Numbers that are float8 after scaling: the interpreter rounds to float8 unlike the hardware."""
    values = (100 * random(4, width)).clamp(-448, 448).to(torch.float8_e4m3fn)
    values[:, width // 2] = -448.0
    values[3] = 0
    scales = torch.tensor([2**-9, 1.0, 64.0, 0.0])[:, None]
    x = (values.float() * scales).to(dtype)
    found, found_scales = fused.quantize_rows(x)
    expected, expected_scales = plain.quantize_rows(x)
    assert torch.equal(found_scales, expected_scales)
    assert torch.equal(found_scales[:3], scales[:3])
    assert found_scales[3] > 0
    assert torch.equal(found.float(), values.float())
    assert torch.equal(expected.float(), values.float())


def int4_matrix(outputs, inputs, group_size):
    rng = torch.Generator().manual_seed(outputs)
    groups = inputs // group_size
    matrix = GroupedMatrix(
        torch.randint(0, 16, (outputs, inputs), generator=rng, dtype=torch.uint8),
        torch.rand(outputs, groups, generator=rng).half() / 16,
        torch.randint(0, 17, (outputs, groups), generator=rng, dtype=torch.int16),
        torch.arange(inputs) // group_size,
        4,
    )
    return pack_int4([matrix])[0]


@pytest.mark.parametrize("rows", [1, 20, 67, int4_matmul.MOST_ROWS + 1])
@pytest.mark.parametrize(("outputs", "inputs", "group_size"), [(70, 128, 32), (33, 512, 256)])
def test_products_with_weights_of_4_bits_equal_those_with_dequantized_weights(rows, outputs, inputs, group_size):
    dtype = torch.float16
    matrix, bias = int4_matrix(outputs, inputs, group_size), random(outputs, dtype=dtype)
    x = random(rows, inputs + 8, dtype=dtype)[:, :inputs]
    tolerance = 20 * TOLERANCES[dtype]
    for each in (None, bias):
        expected = plain.int4_linear(x, matrix, each)
        torch.testing.assert_close(fused.int4_linear(x, matrix, each), expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(int4_matmul.dequantized(matrix, dtype), matrix.dequantized(dtype))


@pytest.mark.parametrize("splits", [2, 3, 8])
def test_programs_that_share_inputs_of_4_bits_add_up_to_the_product(splits):
    """Five steps are two or three each, or fewer in the last; eight programs are more than there are steps."""
    dtype, (outputs, inputs) = torch.float16, (70, 320)
    matrix, bias, x = int4_matrix(outputs, inputs, 32), random(outputs, dtype=dtype), random(20, inputs, dtype=dtype)
    tolerance = 20 * TOLERANCES[dtype]
    for each in (None, bias):
        found = int4_matmul.tiled(x, matrix, each, int4_matmul.TILES[0], splits)
        torch.testing.assert_close(found, plain.int4_linear(x, matrix, each), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("outputs", "inputs", "splits"), [(14336, 4096, 1), (4096, 14336, 4), (300, 512, 1)])
def test_inputs_of_4_bits_are_split_where_tiles_are_few(outputs, inputs, splits):
    packed, groups = torch.empty(outputs, inputs // 2, dtype=torch.uint8), torch.empty(inputs // 128, outputs)
    matrix = Int4Matrix(packed, groups, groups, 128)
    assert int4_matmul.splits_of(matrix, -(-outputs // 64)) == splits


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("rows", range(1, few_rows.MOST_ROWS + 2))
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 48), (9, 1024), (5, 3000), (3, 14336)])
def test_products_of_few_rows_equal_torchs(dtype, rows, outputs, inputs):
    x, weight = random(rows, inputs + 8, dtype=dtype)[:, :inputs], random(outputs, inputs, dtype=dtype, seed=2)
    tolerance = 50 * TOLERANCES[dtype]
    for bias in (None, random(outputs, dtype=dtype, seed=3)):
        expected = plain.linear(x.double(), weight.double(), None if bias is None else bias.double()).to(dtype)
        torch.testing.assert_close(fused.linear(x, weight, bias), expected, atol=tolerance, rtol=tolerance)
        found = few_rows.linear(x, weight, bias, few_rows.Threads(1, 32))
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_the_kernel_for_few_rows_is_left_out_where_it_cannot_win_or_rows_must_not_differ(monkeypatch):
    weight, few = random(8, 64), random(few_rows.MOST_ROWS, 64)
    expected, many = few_rows.linear(few, weight, None), random(few_rows.MOST_ROWS + 1, 64)
    monkeypatch.setattr(few_rows, "linear", lambda *arguments: "few rows")
    assert fused.linear(few, weight, None) == "few rows"
    for ops, x in ((fused, many), (fused, many[:0]), (TritonOps(batch_invariant=True), few)):
        assert torch.equal(ops.linear(x, weight, None), plain.linear(x, weight, None))
    monkeypatch.setitem(few_rows.MOST_BYTES, few_rows.MOST_ROWS, weight.nbytes - 1)
    assert_close(fused.linear(few, weight, None), expected, torch.float32)


def test_no_tokens_are_no_fault():
    rows, scales = fused.quantize_rows(random(0, 48))
    assert (rows.shape, scales.shape) == ((0, 48), (0, 1))
    assert fused.int4_linear(random(0, 64), int4_matrix(8, 64, 32), None).shape == (0, 8)
    assert fused.rms_norm(random(0, 48), random(48), 1e-5).shape == (0, 48)
    assert fused.silu_mul(random(0, 96)).shape == (0, 48)
    assert [
        t.shape for t in fused.rotary(random(0, 40), torch.zeros(0, dtype=torch.int64), random(9, 8), 3, 1, None, 0.0)
    ] == [
        (0, 3, 8),
        (0, 1, 8),
        (0, 1, 8),
    ]


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 70, 100), (67, 130, 33)])
def test_products_equal_torchs(dtype, m, n, k):
    a, weight, bias = random(m, k, dtype=dtype), random(n, k, dtype=dtype, seed=2), random(n, dtype=dtype, seed=3)
    tolerance = 20 * TOLERANCES[dtype]
    expected = (a.double() @ weight.double().T).to(dtype)
    torch.testing.assert_close(invariant_matmul.matmul(a, weight.t()), expected, atol=tolerance, rtol=tolerance)
    expected = (a.double() @ weight.double().T + bias.double()).to(dtype)
    torch.testing.assert_close(invariant_matmul.addmm(bias, a, weight.t()), expected, atol=tolerance, rtol=tolerance)


def test_a_row_alone_is_the_row_in_a_batch_bit_for_bit():
    dtype = torch.float16
    x, weight = random(67, 200, dtype=dtype), random(96, 200, dtype=dtype, seed=2)
    norm, table = random(200, dtype=dtype, seed=3), random(67, 20)
    positions = torch.arange(67)
    int4, wide = int4_matrix(32, 256, 128), random(67, 256, dtype=dtype, seed=4)
    invariant = TritonOps(batch_invariant=True)

    def computed(rows):
        product = invariant_matmul.matmul(x[rows], weight.t())
        normed = fused.rms_norm(x[rows], norm, 1e-5)
        rotated = fused.rotary(x[rows].clone(), positions[rows], table, 6, 2, None, 0.0)
        quantized, scales = fused.quantize_rows(x[rows])
        of_4_bits = invariant.int4_linear(wide[rows], int4, None)
        return [product, normed, *rotated, fused.silu_mul(x[rows]), quantized.float(), scales, of_4_bits]

    together = computed(slice(None))
    for row in (0, 63, 64, 66):
        alone = computed(slice(row, row + 1))
        assert all(torch.equal(one[0], all_[row]) for one, all_ in zip(alone, together, strict=True))


def test_a_row_among_few_is_the_row_alone_bit_for_bit():
    x, weight = random(few_rows.MOST_ROWS, 200, dtype=torch.float16), random(96, 200, dtype=torch.float16, seed=2)
    together = few_rows.linear(x, weight, None)
    assert all(torch.equal(few_rows.linear(x[row : row + 1], weight, None)[0], together[row]) for row in range(len(x)))


def test_what_no_linear_layer_asks_for_is_refused():
    with pytest.raises(ValueError, match="batch_invariant has no scaled products"):
        invariant_matmul.addmm(random(3), random(2, 4), random(4, 3), alpha=2)
