"""One engine's measurements in a process of its own, so that its memory is free again for the next:
`python -m tools.bench.gpu.part ENGINE SHAPE DEVICE SIZE FOLDER FILE`. What it finds, or why not, is in FILE as JSON."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tools.bench.gpu.peers import NotHereError, transformers, vllm
from tools.bench.gpu.speed import FULL, SMALL, measure

ENGINES = {"inflight": measure, "vllm": vllm, "transformers": transformers}
SIZES = {"full": FULL, "small": SMALL}
_REASON_CHARACTERS = 300


def run(engine: str, shape: str, device: str, size: str, folder: Path) -> dict[str, Any]:
    """Figures; or `missing`, where the engine is not here; or `failed`."""
    try:
        return ENGINES[engine](shape, device, SIZES[size], folder)
    except NotHereError as error:
        return {"missing": str(error)[:_REASON_CHARACTERS]}
    except Exception as error:  # it is in the report, and the other engines are measured all the same
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]}


def main() -> None:
    engine, shape, device, size, folder, file = sys.argv[1:]
    Path(file).write_text(json.dumps(run(engine, shape, device, size, Path(folder))))


if __name__ == "__main__":
    main()
