"""The model that all engines load: the built-in one, written out once in the format that every engine reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inflight_engine.models.source import resolve

SOURCE = "builtin://smollm2"
_FOLDER = "smollm2-135m-instruct-bfloat16"


@dataclass(frozen=True, slots=True)
class Model:
    """`folder`: Hugging Face's format, in bfloat16. `gguf`: the file that it was made from."""

    folder: Path
    gguf: Path


def exported(cache: Path, say: Callable[[str], None]) -> Model:
    """The model's files, written the first time (20 seconds)."""
    files = resolve(SOURCE)
    if files.gguf is None:
        raise AssertionError(f"{SOURCE} is a GGUF file")
    folder = cache / "models" / _FOLDER
    if not folder.exists():
        say(f"writing {SOURCE} as safetensors to {folder}")
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        _export(files.gguf, new)
        new.rename(folder)  # whole, or not there
    return Model(folder, files.gguf)


def _export(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
