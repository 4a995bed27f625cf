"""llama.cpp through llama-cpp-python: one sequence at a time."""

from __future__ import annotations

import importlib
import time
from typing import Any

from tools.bench.engine.drivers.base import DECODE_WARM_UP_STEPS, run


class LlamaCppDriver:
    """Settings: `model`, a GGUF file; `threads`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        llama_cpp: Any = importlib.import_module("llama_cpp")  # only in its own environment
        self._llama = llama_cpp.Llama(
            model_path=settings["model"],
            n_ctx=2048,
            n_batch=2048,
            n_ubatch=512,
            n_threads=settings["threads"],
            n_threads_batch=settings["threads"],
            verbose=False,
        )
        self.vocab_size = self._llama.n_vocab()
        self.engine = f"llama.cpp (llama-cpp-python {llama_cpp.__version__}), {settings['weights']}"

    def generate(self, prompts: list[list[int]], output_tokens: int, schemas: list[dict[str, Any]]) -> int:
        if schemas:
            raise NotImplementedError("grammars in another language")
        return sum(self._generate(prompt, output_tokens) for prompt in prompts)

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        if len(prompts) != 1:
            raise NotImplementedError("one sequence at a time")
        self._generate(prompts[0], DECODE_WARM_UP_STEPS)
        token = self._greedy()
        started = time.perf_counter()
        for _ in range(steps):
            self._llama.eval([token])
            token = self._greedy()
        return time.perf_counter() - started

    def _generate(self, prompt: list[int], output_tokens: int) -> int:
        self._llama.reset()
        self._llama.eval(prompt)
        for _ in range(output_tokens - 1):
            self._llama.eval([self._greedy()])
        self._greedy()
        return output_tokens

    def _greedy(self) -> int:
        token: int = self._llama.sample(temp=0.0)
        return token


if __name__ == "__main__":
    run(LlamaCppDriver)
