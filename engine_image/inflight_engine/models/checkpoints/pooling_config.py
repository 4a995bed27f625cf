"""How a model's prompts become vectors, by sentence-transformers' modules.json; as in vLLM where there is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from inflight_engine.models.checkpoints.config import read_json
from inflight_engine.models.checkpoints.source import ModelFiles


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """Attributes:
    normalized: vectors have the length one.
    dimensions: lengths that vectors may be shortened to; empty: any if `matryoshka`, else none.
    matryoshka: the model was trained so that vectors can be shortened.
    width: numbers of a vector that is not shortened.
    refusal: why this server cannot make the model's vectors; empty: it can.
    """

    normalized: bool = True
    dimensions: tuple[int, ...] = ()
    matryoshka: bool = False
    width: int = 0
    refusal: str = ""

    def shortened(self, dimensions: int) -> bool:
        """Vectors may be shortened to so many numbers."""
        return dimensions in self.dimensions if self.dimensions else self.matryoshka and dimensions <= self.width


LAST_TOKEN = PoolingConfig()


def read_pooling(files: ModelFiles) -> PoolingConfig:
    """The pooling of a model: of the last token, with the length one unless modules.json leaves that out.

    Raises:
        ValueError: a file is damaged.
    """
    config = read_json(files.folder / "config.json")
    dimensions = tuple(config.get("matryoshka_dimensions") or ())
    matryoshka = bool(dimensions or config.get("is_matryoshka"))
    width = config.get("hidden_size")
    width = width if isinstance(width, int) else 0
    path = files.folder / "modules.json"
    if not path.is_file():
        return PoolingConfig(dimensions=dimensions, matryoshka=matryoshka, width=width)
    modules = _modules(files, path.name)
    types = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    refusal = next((_refusal(files, module) for module in modules if module.get("type", "").endswith(".Pooling")), "")
    unknown = [each for each in types if each not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        refusal = f"this server has no module {unknown[0]} of sentence-transformers, which the model's vectors need"
    return PoolingConfig("Normalize" in types, dimensions, matryoshka, width, refusal)


def _modules(files: ModelFiles, name: str) -> list[dict[str, Any]]:
    modules = json.loads((files.folder / name).read_text(encoding="utf-8"))
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ValueError(f"{files.folder / name} is not a list of modules")
    return modules


def _refusal(files: ModelFiles, module: dict[str, Any]) -> str:
    path = files.folder / str(module.get("path", "")) / "config.json"
    modes = read_json(path) if path.is_file() else {}
    name = modes.get("pooling_mode")
    chosen = {
        key.removeprefix("pooling_mode_") for key, value in modes.items() if value is True and "pooling_mode_" in key
    }
    chosen |= {name} if isinstance(name, str) else set()
    if chosen <= {"lasttoken"}:
        return ""
    return f"this model pools by {', '.join(sorted(chosen))}; this server pools the last token only"
