"""The kernels on Arm, cross-compiled and run by QEMU: `kernels_program.cpp` calls them."""

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
def test_a_product_is_that_of_the_rows_it_keeps_and_a_row_alone_is_the_same_bits(run, form, shape):
    weight, x = some(shape)
    kept, found = product(run, "generic", form, weight, x)
    torch.testing.assert_close(kept, product(run, "host", form, weight, x)[0], rtol=0, atol=0)
    if form in ("int8", "int4"):
        x = rounded_to_8_bits(x, {"int8": 64, "int4": 32}[form])
    torch.testing.assert_close(found, x @ kept.T, rtol=2e-5, atol=2e-5 * shape[1] ** 0.5)


def test_what_decides_on_a_variant_runs_on_arm(run):
    assert list(run("generic", "gain")) == [0, 0]


@pytest.mark.parametrize("form", FORMATS)
def test_a_decoder_gives_this_machine_s_logits_whatever_the_chunks(run, form):
    whole, chunks = (run("generic", "decoder", FORMATS.index(form), *counts) for counts in ((60,), (33, 1, 2, 24)))
    assert np.array_equal(whole.view(np.uint32), chunks.view(np.uint32))
    expected = run("host", "decoder", FORMATS.index(form), 60)
    # Another rounding in float32 moves an activation by a whole step of its 8 bits, or of bfloat16.
    most = 1e-5 if form == "float32" else 0.02
    assert np.sqrt(np.mean((whole - expected) ** 2)) < most * expected.std()
