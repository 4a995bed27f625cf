"""Products in matrix tiles against the formula of the instructions, bit for bit: emulated anywhere, and by the
instructions themselves where the CPU has them."""

import ctypes

import numpy as np
import pytest
import torch

from inflight_engine.native.library import EMULATED
from tests.engine.native.test_matrix import packed_from
from tests.engine.native.variants import VARIANTS, kernels

TILES = [name for name in VARIANTS if name in ("amx", EMULATED)]
pytestmark = pytest.mark.skipif(not TILES, reason="no kernels with tiles are compiled for this CPU")

LEAST = np.float32(2**-126)
"""The least number that is no denormal."""


@pytest.fixture(params=TILES, scope="module")
def library(request):
    with kernels(request.param) as library:
        yield library


def flushed(x):
    """Denormal numbers as zeros of their sign."""
    return np.where(np.abs(x) < LEAST, np.copysign(np.float32(0), x), x)


def rounded_once(x, error):
    """The float64 sum `x` and its rounding error, as the float32 nearest to the exact sum; denormals flushed, those
    that round up to 2**-126 excepted."""
    # Rounding to odd keeps what the second rounding must know of the first.
    bits = x.view(np.int64)
    inexact = (error != 0) & np.isfinite(x) & (bits & 1 == 0)
    x = np.where(inexact, (bits + np.where((error > 0) == (x > 0), 1, -1)).view(np.float64), x)
    near = np.abs(x) < 2.0**-100
    scaled = (x * 2.0**64).astype(np.float32)  # as if exponents had no end
    tiny = near & (np.abs(scaled) < np.float32(2**-62))
    return np.where(tiny, np.copysign(np.float32(0), x.astype(np.float32)), x.astype(np.float32))


def add(a, b):
    """float32 a + b of float64 terms, rounded once."""
    total = a + b
    part = total - a
    return rounded_once(total, (a - (total - part)) + (b - part))


def fma(a, b, c):
    """float32: a and b are bfloat16 numbers, so their product is exact in float64."""
    return add(a.astype(np.float64) * b, c.astype(np.float64))


def product(a, b, c):
    """TDPBF16PS: c [M, N] float32, a [M, 32] and b [32, N] bfloat16 numbers in float32."""
    a, b, c = flushed(a), flushed(b), flushed(c)
    even, odd = np.zeros_like(c), np.zeros_like(c)
    for k in range(0, 32, 2):
        even = fma(a[:, k, None], b[None, k], even)
        odd = fma(a[:, k + 1, None], b[None, k + 1], odd)
    both = add(even.astype(np.float64), odd.astype(np.float64))
    return add(c.astype(np.float64), both.astype(np.float64))


def bfloat16_bits(x):
    """Bits of numbers that bfloat16 can represent."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def as_bfloat16(x):
    return torch.from_numpy(x.astype(np.float32)).bfloat16().float().numpy()


def tile_product(library, a, b, c):
    pairs = np.ascontiguousarray(bfloat16_bits(b).reshape(16, 2, 16).swapaxes(1, 2))
    rows, found = np.ascontiguousarray(bfloat16_bits(a)), np.ascontiguousarray(c)
    library.inflight_tile_multiply(0, *(ctypes.c_void_p(x.ctypes.data) for x in (rows, pairs, found)))
    return found


def some_numbers(rng, kind, shape):
    x = rng.standard_normal(shape)
    if kind == "any exponent":
        x = x * 2.0 ** rng.integers(-126, 128, shape)
    elif kind == "products near the least":
        x = x * 2.0 ** rng.integers(-66, -60, shape)
    elif kind == "denormals":
        x = x * 2.0 ** rng.integers(-133, -120, shape)
    elif kind == "cancelling":
        x = rng.integers(-3, 4, shape) * 2.0 ** rng.integers(-12, 12, shape)
    elif kind == "infinities and NaN":
        x = np.where(rng.random(shape) < 0.02, rng.choice([np.inf, -np.inf, np.nan, 1e38, -3e38], shape), x)
    return as_bfloat16(np.clip(x, -3.3e38, 3.3e38) if kind == "any exponent" else x)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "kind",
    ["plain", "any exponent", "products near the least", "denormals", "cancelling", "infinities and NaN"],
)
def test_a_tile_product_is_the_formula_bit_for_bit(library, kind):
    rng = np.random.default_rng(7)
    for _ in range(40):
        a, b = some_numbers(rng, kind, (16, 32)), some_numbers(rng, kind, (32, 16))
        c = some_numbers(rng, kind, (16, 16)) * np.float32(1.2345)  # not a bfloat16
        expected, found = product(a, b, c), tile_product(library, a, b, c)
        both_nan = np.isnan(expected) & np.isnan(found)
        assert np.array_equal(found.view(np.uint32)[~both_nan], expected.view(np.uint32)[~both_nan])


def test_an_integer_tile_product_is_exact(library):
    rng = np.random.default_rng(8)
    a = rng.integers(-128, 128, (16, 64)).astype(np.int8)
    b = rng.integers(0, 256, (64, 16)).astype(np.uint8)
    c = rng.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
    expected = (c + a.astype(np.int64) @ b).astype(np.int32)  # modulo 2**32
    quads = np.ascontiguousarray(b.reshape(16, 4, 16).swapaxes(1, 2))
    library.inflight_tile_multiply(1, *(ctypes.c_void_p(x.ctypes.data) for x in (a, quads, c)))
    assert np.array_equal(c, expected)


@pytest.mark.parametrize("scale", [1.0, 2.0**-63])
@pytest.mark.parametrize("rows", [1, 4, 5, 40])
def test_products_by_vectors_and_by_tiles_are_the_formula_bit_for_bit(library, rows, scale):
    """Few rows are multiplied by vectors, more by tiles; the smaller scale makes denormal sums."""
    rng = np.random.default_rng(rows)
    x, weight = (as_bfloat16(rng.standard_normal(shape) * scale) for shape in ((rows, 70), (50, 70)))
    expected = np.zeros((rows, 50), np.float32)
    padded = [np.pad(values, ((0, 0), (0, 26))) for values in (x, weight)]
    for at in range(0, 96, 32):
        part = [values[:, at : at + 32] for values in padded]
        expected = product(part[0], part[1].T, expected)
    expected += np.float32(0)  # the bias that there is not
    found = packed_from(library, "bfloat16", torch.from_numpy(weight)) @ torch.from_numpy(x)
    assert np.array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))


def test_integer_products_are_the_same_bits_by_tiles_and_by_vectors(library):
    """A row alone is multiplied by vectors."""
    torch.manual_seed(9)
    weight, x = torch.randn(70, 1000), torch.randn(300, 1000)
    packed = packed_from(library, "int8", weight)
    by_vectors = torch.cat([packed @ row[None] for row in x[:50]])
    assert torch.equal((packed @ x)[:50], by_vectors)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_a_row_is_the_same_bits_with_any_number_of_threads(library, form, monkeypatch):
    torch.manual_seed(10)
    packed = packed_from(library, form, torch.randn(300, 96))
    x = torch.randn(300, 96)
    results = []
    for num_threads in (1, 2, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda num_threads=num_threads: num_threads)
        results += [packed @ x, torch.cat([packed @ x[:20].contiguous(), packed @ x[20:].contiguous()])]
    assert all(torch.equal(result, results[0]) for result in results[1:])
