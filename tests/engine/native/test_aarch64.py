"""The kernels' variants for Arm, cross-compiled and run by QEMU: `kernels_program.cpp` calls them."""

import functools
import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from inflight_engine.native import library
from tests.engine.native.test_matrix import FORMATS, rounded_to_8_bits

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "engine_image" / "kernels"
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
MISSING = [
    package
    for package, found in [("g++-aarch64-linux-gnu", shutil.which(COMPILER)), ("qemu-user-static", EMULATOR)]
    if not found
]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed (as Debian calls it): {', '.join(MISSING)}"),
    pytest.mark.skipif(not library.is_runnable("generic"), reason="no CPU kernels to compare with are compiled"),
]
ARM = ("generic", "bf16mmla")


@pytest.fixture(scope="module")
def run(request):
    """run(variant, *arguments, numbers=()): what the program gives with this variant; `host`: this machine's `generic`.

    The libraries stay in pytest's cache: compiling them takes half a minute.
    """
    folder = request.config.cache.mkdir("aarch64-kernels")
    spec = importlib.util.spec_from_file_location("kernels_build", KERNELS / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    source = [str(HERE / "kernels_program.cpp"), f"-I{KERNELS}", "-std=c++17", "-O1", "-Wno-psabi", "-ldl"]
    subprocess.run([*build.compiler(), *source, "-o", folder / "program-host"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", COMPILER)
        build.build(folder, machine="aarch64")
        subprocess.run([COMPILER, *source, "-o", folder / "program"], check=True)

    @functools.cache
    def called(variant, *arguments, numbers=b""):
        command = [EMULATOR, "-cpu", "max", "-L", "/usr/aarch64-linux-gnu", folder / "program"]
        command.append(folder / f"libinflight-{variant}.so")
        if variant == "host":
            command = [folder / "program-host", library._FOLDER / "libinflight-generic.so"]
        done = subprocess.run([*command, *map(str, arguments)], input=numbers, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return np.frombuffer(done.stdout, np.float32)

    return called


def product(run, variant, form, weight, x):
    """The weights that the matrix keeps, and the product; a row alone gave the same bits."""
    (outputs, inputs), rows = weight.shape, len(x)
    numbers = weight.numpy().tobytes() + x.numpy().tobytes()
    found = run(variant, "product", FORMATS.index(form), outputs, inputs, rows, numbers=numbers)
    kept, together, alone = np.split(found, np.cumsum([outputs * inputs, rows * outputs]))
    assert np.array_equal(together.view(np.uint32), alone.view(np.uint32))
    return torch.tensor(kept).view(outputs, inputs), torch.tensor(together).view(rows, outputs)


# Inputs that fill no group, no product and several blocks; an odd number of rows, and several blocks of those.
SHAPES = [(33, 70, 101), (9, 1602, 13)]


def some(shape):
    torch.manual_seed(sum(shape))
    outputs, inputs, rows = shape
    return torch.randn(outputs, inputs), torch.randn(rows, inputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("variant", ARM)
def test_a_product_is_that_of_the_rows_it_keeps_and_a_row_alone_is_the_same_bits(run, variant, form, shape):
    weight, x = some(shape)
    kept, found = product(run, variant, form, weight, x)
    torch.testing.assert_close(kept, product(run, "host", form, weight, x)[0], rtol=0, atol=0)
    if form in ("int8", "int4"):
        x = rounded_to_8_bits(x, {"int8": 64, "int4": 32}[form])
    elif (variant, form) == ("bf16mmla", "bfloat16"):
        x = x.bfloat16().float()
    torch.testing.assert_close(found, x @ kept.T, rtol=2e-5, atol=2e-5 * shape[1] ** 0.5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["float32", "int8", "int4"])
def test_variants_give_the_same_bits_where_only_the_instructions_differ(run, form, shape):
    """Sums of integers are exact."""
    results = [product(run, variant, form, *some(shape))[1] for variant in ARM]
    assert torch.equal(*results)


def add_rounded_to_odd(a, b):
    """float32 a + b: what is not exact is cut off, and its last bit is then 1."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    bits = bits + np.where((error != 0) & (bits & 1 == 0), np.where((error > 0) == (total > 0), 1, -1), 0)
    tail = (1 << 29) - 1  # what float64 has more
    cut = (bits & ~tail).view(np.float64).astype(np.float32)
    return (cut.view(np.int32) | (bits & tail != 0)).view(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_bfloat16_are_the_formula_of_the_instruction_bit_for_bit(run, shape):
    """BFMMLA: for each two inputs the sum of two products, then that and the sum so far."""
    weight, x = some(shape)
    _, found = product(run, "bf16mmla", "bfloat16", weight, x)
    w, x = (values.bfloat16().float().numpy() for values in (weight, x))
    expected = np.zeros((len(x), len(w)), np.float32)
    for i in range(0, shape[1], 2):
        first, second = (x[:, None, at] * w[None, :, at] for at in (i, i + 1))
        expected = add_rounded_to_odd(expected, add_rounded_to_odd(first, second))
    assert np.array_equal(found.numpy(), expected)


def test_what_decides_on_a_variant_runs_on_arm(run):
    gain, refusal = run("bf16mmla", "gain")
    assert gain > 0
    assert refusal == 0
    assert list(run("generic", "gain")) == [0, 0]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("variant", ARM)
def test_a_decoder_gives_this_machine_s_logits_whatever_the_chunks(run, variant, form):
    whole, chunks = (run(variant, "decoder", FORMATS.index(form), *counts) for counts in ((60,), (33, 1, 2, 24)))
    assert np.array_equal(whole.view(np.uint32), chunks.view(np.uint32))
    expected = run("host", "decoder", FORMATS.index(form), 60)
    # Another rounding in float32 moves an activation by a whole step of its 8 bits, or of bfloat16.
    most = 1e-5 if form == "float32" else 0.02
    assert np.sqrt(np.mean((whole - expected) ** 2)) < most * expected.std()
