"""Continuous batching of transformers: `generate_batch`."""

from __future__ import annotations

from typing import Any

from tools.bench.engine.drivers.base import run


class TransformersDriver:
    """Settings: `model`, a folder; `dtype`; `device`; `threads`; `cache`, arguments of `ContinuousBatchingConfig`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(settings["threads"])
        model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=getattr(torch, settings["dtype"]), attn_implementation="sdpa"
        )
        self._model = model.to(settings["device"]).eval()
        self._cache = settings["cache"]
        self._transformers = transformers
        self.vocab_size = self._model.config.vocab_size
        self.engine = (
            f"transformers {transformers.__version__} continuous batching, torch {torch.__version__}, "
            f"{settings['dtype']}"
        )

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        results = self._model.generate_batch(
            inputs=prompts,
            # No token has the id -1, so nothing ends before its length.
            generation_config=self._transformers.GenerationConfig(
                max_new_tokens=output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=self._transformers.ContinuousBatchingConfig(
                allow_block_sharing=False, **self._cache
            ),
        )
        return sum(len(result.generated_tokens) for result in results.values())

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        raise NotImplementedError("steps cannot be timed one by one")


if __name__ == "__main__":
    run(TransformersDriver)
