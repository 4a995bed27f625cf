"""The same requests on vLLM, on the same machine, with models of the same shape and random weights."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.shapes import SHAPES, write_config
from tools.bench.gpu.speed import SIZES
from tools.bench.gpu.workload import TEMPERATURE


def vllm(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """vLLM with its own defaults; no prefix cache, since no prompts are alike."""
    try:
        package: Any = importlib.import_module("vllm")
    except ImportError as error:
        raise NotHereError(f"vllm cannot be imported here: {error}") from error
    size = SIZES[size_name]
    if device != "cuda":
        raise NotHereError("vLLM is measured on a GPU alone")
    write_config(folder, SHAPES[shape])
    engine = package.LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=size.max_model_len,
        enable_prefix_caching=False,
    )
    workload = size.workload
    inputs = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
    sampling = [
        package.SamplingParams(temperature=TEMPERATURE, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in workload.output_tokens
    ]
    engine.generate(inputs[:2], sampling[:2], use_tqdm=False)
    started = time.perf_counter()
    outputs = engine.generate(inputs, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    if num_tokens != workload.num_output_tokens:
        raise RuntimeError(f"{num_tokens} output tokens came, not {workload.num_output_tokens}")
    return {"engine": f"vLLM {package.__version__}", "continuous": num_tokens / seconds}
