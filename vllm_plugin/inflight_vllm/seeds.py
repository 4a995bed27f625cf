"""Seeds of requests whose prompts are computed in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def kept_of_unfinished_prompts(runner: Any) -> Iterator[None]:
    """While the block runs, a `GPUModelRunner` draws no random numbers with the generators of requests whose prompts
    are not computed to their end: what it samples for them is not used.

    vLLM draws, and turns the generator back by its offset, which that of a CPU does not have: the server ends. What a
    vLLM that is not known calls otherwise is left as it is.
    """
    try:
        batch = runner.input_batch
        rows = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
        kept = {row: batch.generators.pop(row) for row in rows if row in batch.generators}
    except AttributeError:
        yield
        return
    try:
        yield
    finally:
        batch.generators.update(kept)
