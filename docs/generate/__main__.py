"""The reference pages of the documentation."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate import clients, flags, metrics, resource, vllm
from docs.generate.parsers import PARSERS
from tools import generated

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def texts() -> dict[Path, str]:
    """The text of each page, by its path."""
    pages = {name: flags.page(name) for name in PARSERS}
    pages |= {"inferenceservice": resource.page(), "kubectl-inflight": flags.kubectl_page(), "metrics": metrics.page()}
    pages |= {"vllm": vllm.page(), "clients": clients.page()}
    return {REFERENCE / f"{name}.md": text for name, text in pages.items()}


if __name__ == "__main__":
    sys.exit(generated.run("docs.generate", __doc__, texts()))
