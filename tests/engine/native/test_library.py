"""Choice of the library of kernels, and the threads that it computes with."""

import errno
import io
from types import SimpleNamespace

import pytest
import torch

from inflight_engine.native import library
from tests.engine.native.variants import VARIANTS, kernels, needs_kernels

cpu_flags = library._cpu_flags


@needs_kernels
def test_the_kernels_compute_with_as_many_threads_as_torch_at_that_time(monkeypatch):
    with kernels(VARIANTS[0]) as loaded:
        sizes = {}
        for num_threads in (1, 3, 1, 2):
            monkeypatch.setattr("torch.get_num_threads", lambda num_threads=num_threads: num_threads)
            assert sizes.setdefault(num_threads, library.team()) is library.team()
        scratch = [loaded.inflight_draw_scratch(sizes[num_threads], torch.int32.itemsize) for num_threads in (1, 2, 3)]
        assert scratch == [scratch[0], 2 * scratch[0], 3 * scratch[0]]


@needs_kernels
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_environment_names_the_variant(variant):
    with kernels(variant) as loaded:
        assert loaded._name.endswith(f"libinflight-{variant}.so")


def test_a_variant_that_cannot_run_here_is_refused_with_those_that_can(monkeypatch):
    monkeypatch.setattr(library, "_cpu_flags", set)
    refusal = r"INFLIGHT_CPU_KERNELS is avx512, which cannot be used here; usable: off"
    with pytest.raises(ValueError, match=refusal), kernels("avx512"):
        pass


def test_without_a_compiled_library_torch_computes_alone(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.delenv(library.ENVIRONMENT, raising=False)
    with kernels(""):
        assert library.library() is None
    assert "none compiled" in caplog.text


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that can run every variant; says which one is chosen, by what the system and the measurement say."""
    for name in library.VARIANTS:
        (tmp_path / f"libinflight-{name}.so").touch()
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library, "_cpu_flags", lambda: set.union(*library._X86.values()))

    def chosen(permission=0, asked="", **gains):
        def load(path):
            name = path.rpartition("libinflight-")[2].removesuffix(".so")
            functions = {"inflight_tiles_enable": permission if name == "amx" else 0}
            functions["inflight_bf16_gain"] = gains.get(name, 0.0)
            return SimpleNamespace(**{key: _Constant(value) for key, value in functions.items()})

        monkeypatch.setattr(library.ctypes, "CDLL", load)
        with kernels(asked):
            return library._loaded()[0]

    return chosen


class _Constant:
    def __init__(self, value):
        self.value = value

    def __call__(self):
        return self.value


def test_tiles_are_used_where_the_system_allows_them_and_they_are_measured_to_be_fast(machine):
    assert machine(amx=15.0, avx512bf16=2.0) == "amx"
    assert machine(permission=errno.EPERM, amx=15.0, avx512bf16=2.0) == "avx512bf16"
    assert machine(permission=errno.EPERM, amx=15.0, avx512bf16=0.5) == "avx512"
    assert machine(amx=0.1, avx512bf16=0.5) == "avx512"


def test_a_variant_that_is_asked_for_is_not_measured_but_needs_the_permission(machine):
    assert machine(asked="amx", amx=0.1) == "amx"
    with pytest.raises(ValueError, match=r"INFLIGHT_CPU_KERNELS is amx, but the system refuses tiles: .*permitted"):
        machine(asked="amx", permission=errno.EPERM)


def test_on_arm_products_of_small_matrices_are_used_where_the_cpu_has_them_and_they_are_fast(machine, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(library, "_cpu_flags", cpu_flags)

    def cpu_has(features):
        text = f"processor\t: 0\nBogoMIPS\t: 100.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        monkeypatch.setattr(library, "open", lambda *_, **__: io.StringIO(text), raising=False)

    cpu_has("fp asimd crc32 atomics asimdrdm asimddp i8mm bf16")
    assert machine(bf16mmla=4.0) == "bf16mmla"
    assert machine(bf16mmla=0.5) == "generic"
    cpu_has("fp asimd crc32 atomics asimdrdm asimddp bf16")
    assert machine(bf16mmla=4.0) == "generic"
