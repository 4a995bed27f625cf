"""Which library of kernels is loaded, and the threads that it computes with."""

import pytest
import torch

from inflight_engine.native import library
from tests.engine.native.variants import VARIANTS, kernels, needs_kernels


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
