"""Seeds of requests whose prompts are computed in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np


@contextmanager
def kept_of_unfinished_prompts(runner: Any) -> Iterator[None]:
    """While the block runs, a `GPUModelRunner` draws no random numbers with the generators of requests whose prompts
    are not computed to their end: what it samples for them is not used.

    vLLM draws, and turns the generator back by its offset, which that of a CPU does not have: the server ends. Runners
    without these attributes are left as they are.
    """
    kept = {}
    with suppress(AttributeError):
        generators = runner.input_batch.generators
        rows = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs]).tolist()
        kept = {row: generators.pop(row) for row in rows if row in generators}
    try:
        yield
    finally:
        if kept:
            generators.update(kept)
