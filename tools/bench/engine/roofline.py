"""How fast a job could be at most on a machine: its memory read once a step, its multiplications at the peak.

The roofline model (Williams, Waterman, Patterson 2009), with two ceilings measured in the same run as the figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tools.bench.engine.jobs import Job

_BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates of the machine with all cores: bytes read a second, floating-point operations a second."""

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time of a job.

    Attributes:
        by: `memory`, `matrix`, or both where some steps are bound by one and some by the other.
    """

    seconds: float
    by: str


@dataclass(frozen=True, slots=True)
class Costs:
    """A dense decoder of the Llama family.

    Attributes:
        body_parameters: in the matrices of all layers; each is multiplied once for every token.
        head_parameters: in the output matrix; multiplied once for every token that is sampled.
        weight_bytes: of one parameter.
        kv_token_bytes: keys and values of one token over all layers.
        attention_flops: of one query over one token of context, all layers: scores and weighted sum.
    """

    body_parameters: int
    head_parameters: int
    weight_bytes: float
    kv_token_bytes: int
    attention_flops: int

    @classmethod
    def of_folder(cls, folder: Path, weight_bytes: float = _BFLOAT16_BYTES) -> Costs:
        """Returns the costs of a model in Hugging Face's format; the cache is in bfloat16."""
        config = json.loads((folder / "config.json").read_text())
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or hidden // heads
        attention = 2 * hidden * (heads + kv_heads) * head_dim
        return cls(
            body_parameters=layers * (attention + 3 * hidden * config["intermediate_size"]),
            head_parameters=hidden * config["vocab_size"],
            weight_bytes=weight_bytes,
            kv_token_bytes=2 * layers * kv_heads * head_dim * _BFLOAT16_BYTES,
            attention_flops=4 * layers * heads * head_dim,
        )

    def prefill(self, prompt_tokens: int) -> tuple[float, float]:
        """Bytes and operations of a whole prompt; one token is sampled."""
        read = self._weights() + prompt_tokens * self.kv_token_bytes
        context = prompt_tokens * (prompt_tokens + 1) / 2
        products = 2 * (prompt_tokens * self.body_parameters + self.head_parameters)
        return read, products + context * self.attention_flops

    def decode(self, num_sequences: int, context_tokens: float) -> tuple[float, float]:
        """Returns the bytes and operations of a step in which each sequence attends to `context_tokens` on average."""
        context = num_sequences * context_tokens
        read = self._weights() + context * self.kv_token_bytes
        products = 2 * num_sequences * (self.body_parameters + self.head_parameters)
        return read, products + context * self.attention_flops

    def _weights(self) -> float:
        return (self.body_parameters + self.head_parameters) * self.weight_bytes


def limit(job: Job, costs: Costs, ceilings: Ceilings) -> Limit:
    """The least seconds of a job: prompts one after the other, then steps of all sequences together."""
    num_sequences = len(job.prompt_tokens)
    mean_prompt = sum(job.prompt_tokens) / num_sequences
    steps = [costs.prefill(length) for length in job.prompt_tokens] if job.kind == "generate" else []
    num_decode_steps = job.output_tokens - (job.kind == "generate")  # a prompt's last step gives a token, too
    if num_decode_steps:
        read, flops = costs.decode(num_sequences, mean_prompt + job.output_tokens / 2)
        steps.extend([(read, flops)] * num_decode_steps)
    seconds, by = 0.0, set()
    for read, flops in steps:
        memory, matrix = read / ceilings.bytes_per_second, flops / ceilings.flops_per_second
        seconds += max(memory, matrix)
        by.add("memory" if memory > matrix else "matrix")
    return Limit(seconds, " and ".join(sorted(by)))
