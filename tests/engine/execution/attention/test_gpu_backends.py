"""Choice of the backend for GPUs, on a machine that has no GPU: what torch would say of one is given."""

import importlib.machinery
import sys
import types
from dataclasses import replace

import pytest
import torch

from inflight_engine.execution.attention import BACKENDS, choose_backend
from inflight_engine.execution.attention.flash_attn_3 import FlashAttn3Backend
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.attention.triton_paged import TritonBackend
from tests.engine.execution.attention.reference import make_spec

FP8 = torch.float8_e4m3fn


def on_gpu(**options):
    return make_spec(device="cuda", **{"dtype": torch.bfloat16, "block_size": 256} | options)


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def flash_attn(monkeypatch):
    """The module of flash-attn-3 with its function's parameters, and nothing behind them."""

    def flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        cache_seqlens=None,
        page_table=None,
        cu_seqlens_q=None,
        max_seqlen_q=None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        num_splits=0,
    ):
        return None

    module = types.ModuleType("flash_attn_interface")
    module.__spec__ = importlib.machinery.ModuleSpec("flash_attn_interface", None)
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    return module


def test_the_fastest_that_can_is_chosen(flash_attn, monkeypatch):
    assert [backend.name for backend in BACKENDS] == [
        "flash-attn-3",
        "triton",
        "cpu-native",
        "torch-sdpa",
    ]
    for block_size in (16, 256):
        assert choose_backend("auto", on_gpu(block_size=block_size)) is FlashAttn3Backend
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    assert choose_backend("auto", on_gpu()) is TritonBackend


def test_the_log_says_how_to_get_a_faster_one(caplog):
    with caplog.at_level("INFO"):
        choose_backend("auto", on_gpu(block_size=16))
    assert "attention: triton" in caplog.text
    assert "flash-attn-3 cannot be used: the package flash-attn-3 is not installed" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": torch.float32}, "it computes in float16 and bfloat16, not in torch.float32"),
        (
            {"cache_dtype": FP8},
            "it takes queries, keys and values of one dtype, not torch.bfloat16 with torch.float8_e4m3fn",
        ),
        ({"head_dim": 288}, "it has heads of up to 256 dimensions, a multiple of 8, not 288"),
        ({"head_dim": 68}, "it has heads of up to 256 dimensions, a multiple of 8, not 68"),
        ({"batch_invariant": True}, "its decodes and its prefill differ in the last bits"),
    ],
)
def test_flash_attention_is_refused_where_its_kernels_cannot_serve(flash_attn, options, reason):
    assert FlashAttn3Backend.why_not(on_gpu(**options)) == reason


def test_flash_attention_takes_windows(flash_attn):
    assert FlashAttn3Backend.why_not(on_gpu(windows=(1024,))) is None


def test_both_have_soft_caps(flash_attn):
    spec = on_gpu(softcap=50.0)
    assert FlashAttn3Backend.why_not(spec) is None
    assert TritonBackend.why_not(spec) is None


def test_another_interface_of_flash_attn_is_refused(flash_attn):
    flash_attn.flash_attn_with_kvcache = lambda q, k_cache, v_cache, block_table=None: None
    assert "has another interface" in FlashAttn3Backend.why_not(on_gpu())
    del flash_attn.flash_attn_with_kvcache
    assert "has another interface" in FlashAttn3Backend.why_not(on_gpu())


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_flash_attention_3_is_for_hopper(flash_attn, monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert "it needs a GPU of compute capability 9.0" in FlashAttn3Backend.why_not(on_gpu())


def test_a_flash_attn_that_cannot_be_imported_is_refused(monkeypatch):
    from inflight_engine.execution.attention import flash_attn_3

    def broken():
        raise ImportError("undefined symbol")

    monkeypatch.setattr(flash_attn_3.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(flash_attn_3, "_library", broken)
    assert FlashAttn3Backend.why_not(on_gpu()) == "the package flash-attn-3 cannot be imported (undefined symbol)"


def test_triton_serves_what_the_others_do_not():
    for options in (
        {"dtype": torch.float32},
        {"cache_dtype": FP8},
        {"block_size": 16},
        {"batch_invariant": True},
        {"head_dim": 80, "windows": (7,), "softcap": 3.0},
    ):
        assert TritonBackend.why_not(on_gpu(**options)) is None


def test_plain_torch_is_not_batch_invariant():
    assert TorchSdpaBackend.why_not(on_gpu()) is None
    assert "the longest sequence of the batch" in TorchSdpaBackend.why_not(on_gpu(batch_invariant=True))


def test_what_triton_cannot_serve():
    assert TritonBackend.why_not(on_gpu(head_dim=512)) == "it has heads of up to 256 dimensions, not 512"
    many = on_gpu(heads=129, kv_heads=1)
    assert TritonBackend.why_not(many) == "more than 128 query heads share a key/value head"
    spec = on_gpu(cache_dtype=torch.float16)
    assert "not in torch.float16" in TritonBackend.why_not(spec)


def test_older_gpus_are_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert TritonBackend.why_not(on_gpu()) is None
    assert TritonBackend.why_not(on_gpu(cache_dtype=FP8)) == (
        "fp8 needs a GPU of compute capability 8.9 (this one has 8.6)"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert TritonBackend.why_not(on_gpu()) == "it needs a GPU of compute capability 8.0 (this one has 7.5)"


@pytest.mark.parametrize("backend", [FlashAttn3Backend, TritonBackend])
def test_without_a_gpu_none_is_chosen(flash_attn, backend):
    spec = replace(on_gpu(), device=torch.device("cpu"))
    assert backend.why_not(spec) == "it needs a GPU"
