"""The worker of a vLLM server on a CPU; loaded in its worker processes by `--worker-cls`."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from inflight_vllm.seeds import kept_of_unfinished_prompts


class SeededWorker(CPUWorker):  # type: ignore[misc]
    """vLLM's CPU worker that survives a request with a seed whose prompt is computed in pieces: small limits of tokens
    make that common."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does."""
        with kept_of_unfinished_prompts(self.model_runner):
            return super().sample_tokens(grammar_output)
