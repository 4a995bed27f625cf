"""Accuracy of number formats: next-token distributions of each against float32's, on real text.

    python -m tools.bench.quantization [--model MODEL] [--tokens N] FILE...

Texts are plain files; without any, the project's own documents. Needs the CPU kernels.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.attention.cpu_native import CpuNativeBackend
from inflight_engine.execution.cpu_decoder import NativeDecoder
from inflight_engine.execution.load import load_model
from inflight_engine.models.checkpoints.config import DecoderConfig, load_model_config
from inflight_engine.models.checkpoints.source import ModelFiles, resolve
from inflight_engine.models.parallel import SingleProcess
from inflight_engine.models.tokens.tokenizer import load_tokenizer
from inflight_settings.engine import DType, EngineConfig, Quantization

PROJECT = Path(__file__).parents[2]
BLOCK_SIZE = 16
FORMATS: tuple[tuple[DType, Quantization], ...] = (
    ("bfloat16", "none"),
    ("float32", "int8"),
    ("bfloat16", "int8"),
    ("float32", "int4"),
    ("bfloat16", "int4"),
)
"""Formats: dtype (of plain weights and of the KV cache) and quantization."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a format from float32.

    Attributes:
        mean_kl: divergence of float32's distribution from the format's, in nats per token.
        perplexity: perplexity of the text.
        agreement: share of the tokens at which both have the same most likely token.
    """

    mean_kl: float
    perplexity: float
    agreement: float


def difference(exact: torch.Tensor, found: torch.Tensor, next_ids: torch.Tensor) -> Difference:
    """Compares logits [T, vocabulary] on a text whose next tokens are next_ids [T]."""
    log_p, log_q = exact.double().log_softmax(-1), found.double().log_softmax(-1)
    return Difference(
        mean_kl=float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
        perplexity=math.exp(-float(log_q.gather(-1, next_ids[:, None]).mean())),
        agreement=float((exact.argmax(-1) == found.argmax(-1)).double().mean()),
    )


def text_logits(
    files: ModelFiles, model_config: DecoderConfig, dtype: DType, quantization: Quantization, texts: list[list[int]]
) -> torch.Tensor:
    """[tokens of all texts, vocabulary]: each text is one prefill."""
    cpu, number_type = torch.device("cpu"), getattr(torch, dtype)
    longest = max(map(len, texts))
    config = EngineConfig(str(files.folder), dtype=dtype, quantization=quantization, max_model_len=longest)
    model = load_model(config, files, model_config, number_type, cpu, SingleProcess())
    if not isinstance(model, NativeDecoder):
        raise SystemExit("error: this model does not run in the CPU kernels here")
    num_blocks = -(-longest // BLOCK_SIZE)
    spec = AttentionSpec(model_config.shape, num_blocks, BLOCK_SIZE, number_type, number_type, cpu, 1, longest, longest)
    attention = CpuNativeBackend(spec)
    logits = []
    none, table = np.zeros(0, np.int64), np.arange(num_blocks)[None]
    for text in texts:
        at = np.arange(len(text))
        chunk = ChunkSpan(0, 0, len(text), 0)
        attention.prepare(AttentionBatch(at, none, none, (chunk,), table, none))
        hidden = model.hidden_states(torch.tensor(text), torch.from_numpy(at), attention)
        logits.append(model.logits(hidden).clone())
    return torch.cat(logits)


def main() -> None:
    parser = argparse.ArgumentParser(description="What fewer bits cost in accuracy.")
    parser.add_argument("--model", default="builtin://smollm2")
    parser.add_argument("--tokens", type=int, default=512, help="of each text")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    paths = arguments.files or [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))[:3]]
    files = resolve(arguments.model, "main")
    model_config = load_model_config(files)
    tokenizer = load_tokenizer(files)
    texts = [tokenizer.encode(path.read_text(encoding="utf-8"))[: arguments.tokens] for path in paths]
    next_ids = torch.tensor([token for text in texts for token in [*text[1:], text[0]]])
    ends = np.cumsum([len(text) for text in texts]) - 1
    judged = torch.ones(len(next_ids), dtype=torch.bool)
    judged[torch.from_numpy(ends)] = False  # nothing follows a text's last token

    exact = text_logits(files, model_config, "float32", "none", texts)[judged]
    print(f"{arguments.model}: {len(exact)} tokens of {', '.join(path.name for path in paths)}")
    print(f"{'dtype':<10} {'quantization':<12} {'KL (nats)':>10} {'perplexity':>11} {'same greedy token':>18}")
    plain: tuple[DType, Quantization] = ("float32", "none")
    for dtype, quantization in (plain, *FORMATS):
        found = text_logits(files, model_config, dtype, quantization, texts)[judged]
        row = difference(exact, found, next_ids[judged])
        print(f"{dtype:<10} {quantization:<12} {row.mean_kl:>10.5f} {row.perplexity:>11.3f} {row.agreement:>18.1%}")


if __name__ == "__main__":
    main()
