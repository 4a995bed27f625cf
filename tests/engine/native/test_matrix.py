"""Packed matrices and their products, in every compiled variant, against torch."""

import ctypes
import random

import pytest
import torch

from inflight_engine.execution.cpu_decoder import Matrix, declare
from inflight_engine.native.library import check, team
from tests.engine.native.variants import VARIANTS, kernels, needs_kernels

pytestmark = needs_kernels
FORMATS = ("float32", "bfloat16", "int8", "int4")
# Outputs that fill no panel, inputs that fill no group; some large enough for several blocks of rows and inputs.
SHAPES = [(1, 2), (31, 6), (33, 64), (100, 70), (48, 130), (64, 1600), (515, 96)]


class Packed:
    """A matrix in the kernels' memory."""

    def __init__(self, library, form, outputs, inputs):
        declare(library)
        self.library = library
        self.size = library.inflight_matrix_bytes(FORMATS.index(form), outputs, inputs)
        self.memory = library.inflight_allocate(self.size)
        self.matrix = Matrix(FORMATS.index(form), 0, outputs, inputs, self.memory)

    def pack(self, weight, first, interleaved=False):
        is_bfloat16 = weight.dtype == torch.bfloat16
        address = ctypes.byref(self.matrix)
        error = self.library.inflight_matrix_pack(
            team(), address, weight.data_ptr(), is_bfloat16, len(weight), first, interleaved
        )
        check(error, "packing")

    def __matmul__(self, x):
        out = torch.empty(len(x), self.matrix.outputs)
        error = self.library.inflight_matmul(team(), ctypes.byref(self.matrix), x.data_ptr(), len(x), out.data_ptr())
        check(error, "multiplying")
        return out

    def rows(self, numbers):
        ids = torch.tensor(numbers)
        out = torch.empty(len(ids), self.matrix.inputs)
        address = ctypes.byref(self.matrix)
        check(self.library.inflight_matrix_rows(address, ids.data_ptr(), len(ids), out.data_ptr()), "reading")
        return out

    def __del__(self):
        self.library.inflight_release(self.memory, self.size)


def packed_from(library, form, weight):
    packed = Packed(library, form, *weight.shape)
    packed.pack(weight, 0)
    return packed


@pytest.fixture(params=VARIANTS, scope="module")
def library(request):
    with kernels(request.param) as library:
        yield library


def groups_of(x, group):
    """[rows, groups, group], filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % group)).view(len(x), -1, group)


def rounded_to_8_bits(x, group):
    """Rounds with a scale for each group of a row, like the kernels' activations and int8 weights."""
    grouped = groups_of(x, group)
    largest = grouped.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.full_like(largest, 127) / largest, 0)  # 127 / tensor rounds twice in torch
    return ((grouped * inverse).round() * (largest / 127)).view(len(x), -1)[:, : x.shape[1]]


def multiplies_in_bfloat16(library):
    return library._name.endswith(("avx512bf16.so", "amx.so", "amxemulated.so", "bf16mmla.so"))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_the_rows_it_keeps(library, form, shape):
    torch.manual_seed(sum(shape))
    weight = torch.randn(shape)
    x = torch.randn(random.Random(shape[0]).choice([1, 5, 12, 29]), shape[1])
    packed = packed_from(library, form, weight)
    kept = packed.rows(range(shape[0]))
    group = {"int8": 64, "int4": 32}.get(form)
    x_kept = rounded_to_8_bits(x, group) if group else x
    if form == "bfloat16" and multiplies_in_bfloat16(library):
        x_kept = x.bfloat16().float()
    torch.testing.assert_close(packed @ x, x_kept @ kept.T, rtol=1e-5, atol=1e-5 * shape[1] ** 0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_kept_as_exactly_as_their_format_allows(library, shape):
    torch.manual_seed(1)
    weight = torch.randn(shape)
    every = range(shape[0])
    assert torch.equal(packed_from(library, "float32", weight).rows(every), weight)
    assert torch.equal(packed_from(library, "bfloat16", weight).rows(every), weight.bfloat16().float())
    torch.testing.assert_close(
        packed_from(library, "int8", weight).rows(every), rounded_to_8_bits(weight, 64), rtol=1e-6, atol=1e-6
    )
    grouped = weight.split(32, dim=1)
    for kept, group in zip(packed_from(library, "int4", weight).rows(every).split(32, dim=1), grouped, strict=True):
        step = (group.amax(1, keepdim=True) - group.amin(1, keepdim=True)) / 15
        assert ((kept - group).abs() <= step * 0.51 + 2e-3).all()


def test_int4_meets_again_what_q4_1_made(library):
    """Scale and minimum in float16, 16 steps: weights that are on such a grid are kept exactly."""
    torch.manual_seed(2)
    steps = torch.randint(0, 16, (40, 3, 32)).float()
    steps[..., 0], steps[..., 1] = 0, 15
    scale = (torch.rand(40, 3, 1) * 0.01).half().float()
    minimum = (-torch.rand(40, 3, 1) * 0.1).half().float()
    weight = (steps * scale + minimum).view(40, 96)
    kept = packed_from(library, "int4", weight).rows(range(40))
    torch.testing.assert_close(kept, weight, rtol=0, atol=2e-4)


@pytest.mark.parametrize("form", FORMATS)
def test_bfloat16_sources_pack_as_their_float32_values(library, form):
    weight = torch.randn(50, 70).bfloat16()
    every = range(50)
    assert torch.equal(
        packed_from(library, form, weight).rows(every), packed_from(library, form, weight.float()).rows(every)
    )


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_is_the_same_bits_whatever_rows_are_beside_it(library, form):
    torch.manual_seed(3)
    packed = packed_from(library, form, torch.randn(70, 850 if form == "int4" else 1600))
    x = torch.randn(300, packed.matrix.inputs)
    whole = packed @ x
    for first, last in [(0, 1), (7, 9), (0, 13), (20, 60), (3, 131), (299, 300)]:
        assert torch.equal(packed @ x[first:last].contiguous(), whole[first:last]), (first, last)


@pytest.mark.parametrize("form", FORMATS)
def test_parts_are_packed_side_by_side(library, form):
    torch.manual_seed(4)
    parts = [torch.randn(rows, 64) for rows in (10, 37, 3)]
    packed = packed_from(library, form, torch.cat(parts))
    beside = Packed(library, form, 50, 64)
    first = 0
    for part in parts:
        beside.pack(part, first)
        first += len(part)
    assert torch.equal(beside.rows(range(50)), packed.rows(range(50)))


def test_what_does_not_fit_is_refused(library):
    packed = packed_from(library, "float32", torch.zeros(8, 4))
    with pytest.raises(RuntimeError, match="packing"):
        packed.pack(torch.zeros(3, 4), 6)
    with pytest.raises(RuntimeError, match="packing"):
        packed_from(library, "bfloat16", torch.zeros(8, 5))
    with pytest.raises(RuntimeError, match="reading"):
        packed.rows([8])


@pytest.mark.skipif(len(VARIANTS) < 2, reason="one variant runs here")
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_variants_agree_to_the_rounding_of_float32(form):
    torch.manual_seed(5)
    weight, x = torch.randn(90, 200), torch.randn(20, 200)
    results = []
    for variant in VARIANTS:
        with kernels(variant) as library:
            results.append(packed_from(library, form, weight) @ x)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-4)
