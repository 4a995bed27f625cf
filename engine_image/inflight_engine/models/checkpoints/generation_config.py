"""generation_config.json of a model: end-of-sequence tokens and default sampling parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight_engine.models.checkpoints.config import read_json
from inflight_engine.models.checkpoints.source import ModelFiles, ModelSourceError

FROM_MODEL, NO_DEFAULTS = "auto", "none"
"""Sources of the defaults beside a folder."""

_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters of requests that do not set them; meanings are those of `SamplingParams`.

    Attributes:
        max_tokens: most that a request may generate, whatever it asks for; None: what the context leaves.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


OPENAI_DEFAULTS = SamplingDefaults()


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Content of the file. `eos_token_ids` is empty where the file names none."""

    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults


def read_generation_config(files: ModelFiles, source: str) -> GenerationConfig:
    """Read it, as vLLM does with `--generation-config`.

    Args:
        files: of the model.
        source: `FROM_MODEL`; `NO_DEFAULTS`: only the end-of-sequence tokens of the model's file; or a folder that holds
            another file.

    Raises:
        ModelSourceError: the folder has no such file.
        ValueError: the file is damaged, or a value out of range; the message names both.
    """
    path = (files.folder if source in (FROM_MODEL, NO_DEFAULTS) else Path(source).expanduser()) / _FILE
    if not path.is_file():
        if source not in (FROM_MODEL, NO_DEFAULTS):
            raise ModelSourceError(f"--generation-config {source} is not a folder that holds {_FILE}")
        return GenerationConfig((), OPENAI_DEFAULTS)
    content = read_json(path)
    eos = token_ids(content.get("eos_token_id"))
    if source == NO_DEFAULTS:
        return GenerationConfig(eos, OPENAI_DEFAULTS)
    try:
        return GenerationConfig(eos, _defaults(content))
    except ValueError as error:
        raise ValueError(f"{path}: {error}; correct it, or give --generation-config {NO_DEFAULTS}") from None


def token_ids(value: Any) -> tuple[int, ...]:
    """Hugging Face writes one id, a list of ids, or null."""
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)


def _defaults(content: Mapping[str, Any]) -> SamplingDefaults:
    values: dict[str, Any] = {}
    for name, (field, kind, least, most) in _FIELDS.items():
        value = content.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | kind) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}, not a number from {least:g} to {most:g}")
        values[field] = kind(value)
    if "top_k" in values:
        values["top_k"] = max(0, values["top_k"])
    return SamplingDefaults(**values)


_SMALLEST = 1e-6
_FIELDS: dict[str, tuple[str, type[int] | type[float], float, float]] = {
    "temperature": ("temperature", float, 0, 2),
    "top_p": ("top_p", float, _SMALLEST, 1),
    "top_k": ("top_k", int, -1, math.inf),
    "min_p": ("min_p", float, 0, 1),
    "repetition_penalty": ("repetition_penalty", float, _SMALLEST, 1e6),
    "max_new_tokens": ("max_tokens", int, 1, math.inf),
}
"""Name of the request's field, type and bounds for each field of the file; the bounds are those of requests."""
