"""The same requests on other engines, on the same machine, with models of the same shape and random weights."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import torch

from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.shapes import SHAPES, write_config
from tools.bench.gpu.speed import SIZES
from tools.bench.gpu.workload import TEMPERATURE, Workload


def transformers(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """Continuous batching of transformers; on a GPU it sizes its cache itself."""
    package, size = _package("transformers"), SIZES[size_name]
    write_config(folder, SHAPES[shape])
    config = package.AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = package.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    generation = package.GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max(size.workload.output_tokens),
        eos_token_id=-1,  # No token has this id, so nothing ends before its length.
        pad_token_id=0,
    )
    sizes = {} if device == "cuda" else {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 64}
    batching = package.ContinuousBatchingConfig(allow_block_sharing=False, **sizes)
    with model.eval().continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:
        _transformers_run(manager, Workload(size.workload.prompts[:2], [4, 4]))
        seconds = _transformers_run(manager, size.workload)
    return {
        "engine": f"transformers {package.__version__} continuous batching",
        "continuous": size.workload.num_output_tokens / seconds,
    }


def _transformers_run(manager: Any, workload: Workload) -> float:
    started, num_tokens, left = time.perf_counter(), 0, len(workload.prompts)
    for prompt, length in zip(workload.prompts, workload.output_tokens, strict=True):
        manager.add_request(input_ids=prompt, max_new_tokens=length)
    while left:
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError("its generation thread ended")
        if result is not None and result.is_finished():
            left -= 1
            num_tokens += len(result.generated_tokens)
    seconds = time.perf_counter() - started
    if num_tokens != workload.num_output_tokens:
        raise RuntimeError(f"{num_tokens} output tokens came, not {workload.num_output_tokens}")
    return seconds


def vllm(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """vLLM with its own defaults; no prefix cache, since no prompts are alike."""
    package, size = _package("vllm"), SIZES[size_name]
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


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotHereError(f"{name} cannot be imported here: {error}") from error
