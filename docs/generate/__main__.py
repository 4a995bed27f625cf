"""The reference pages of the documentation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from docs.generate import flags, metrics, resource
from tools import generated

DOCS = Path(__file__).resolve().parents[1]

FILES: dict[str, Callable[[], str]] = {
    "reference/inferenceservice.md": resource.page,
    "reference/inflight-engine.md": flags.engine_page,
    "reference/inflight-gateway.md": flags.gateway_page,
    "reference/inflight-operator.md": flags.operator_page,
    "reference/inflight-simulate.md": flags.simulator_page,
    "reference/metrics.md": metrics.page,
    "reference/kubectl-inflight.md": flags.kubectl_page,
}
"""Path below `docs`, and what makes its text."""


def texts() -> dict[Path, str]:
    """The text of each page, by its path."""
    return {DOCS / name: make() for name, make in FILES.items()}


if __name__ == "__main__":
    sys.exit(generated.run("docs.generate", __doc__, texts()))
