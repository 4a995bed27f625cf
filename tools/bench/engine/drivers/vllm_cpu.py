"""vLLM's CPU build, eager, through its offline class `LLM`."""

from __future__ import annotations

import importlib
import time
from typing import Any

from tools.bench.engine.drivers.base import DECODE_WARM_UP_STEPS, run


class VLLMDriver:
    """Settings: `model`, a folder; the others are arguments of `LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch

        vllm: Any = importlib.import_module("vllm")  # only in its own environment
        self._llm = vllm.LLM(**settings, enable_prefix_caching=False, disable_log_stats=True)
        self._make_sampling = vllm.SamplingParams
        self._make_structured = vllm.sampling_params.StructuredOutputsParams
        self.vocab_size = self._llm.model_config.get_vocab_size()
        self.engine = f"vLLM {vllm.__version__}, torch {torch.__version__}, eager, {self._llm.model_config.dtype}"
        self._next_id = 0

    def generate(self, prompts: list[list[int]], output_tokens: int, schemas: list[dict[str, Any]]) -> int:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        sampling = self._sampling(output_tokens)
        if schemas:
            bound = [self._make_structured(json=schema) for schema in schemas]
            sampling = [self._sampling(output_tokens, structured_outputs=each) for each in bound]
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        engine = self._llm.llm_engine
        sampling = self._sampling(steps + 2 * DECODE_WARM_UP_STEPS + len(prompts))
        for prompt in prompts:
            engine.add_request(str(self._next_id), {"prompt_token_ids": prompt}, sampling)
            self._next_id += 1
        # Each step gives one output for each request that got a token.
        for _ in range(DECODE_WARM_UP_STEPS + 1):
            while len(engine.step()) != len(prompts):
                pass
        started = time.perf_counter()
        for _ in range(steps):
            if len(engine.step()) != len(prompts):
                raise RuntimeError("a step in the middle of decoding did something else")
        seconds = time.perf_counter() - started
        while engine.has_unfinished_requests():
            engine.step()
        return seconds

    def _sampling(self, output_tokens: int, **more: Any) -> Any:
        return self._make_sampling(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False, **more)


if __name__ == "__main__":
    run(VLLMDriver)
