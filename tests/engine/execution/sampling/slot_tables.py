"""Requests of all kinds in a `SlotTable`."""

import numpy as np
import torch

from inflight_engine.execution.sampling.slot_table import SlotTable
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import SlotStart, StepPlan

CPU = torch.device("cpu")


def start_of(slot, prompt, output, sampling):
    known = np.array([*prompt, *output], np.int32)
    return SlotStart(slot, slot, known, len(prompt), 0, sampling, np.empty(0, np.int32), ())


def table_of(samplings, vocab_size, prompt=(1, 2), output=(2, 3, 3)):
    """Slot i has the i-th sampling."""
    table = SlotTable(len(samplings), vocab_size, CPU)
    starts = tuple(start_of(slot, prompt, output, sampling) for slot, sampling in enumerate(samplings))
    table.apply(StepPlan(0, (), (), starts, None, (), np.empty(0, np.intp), 0))
    return table


def random_samplings(rng, count, vocab_size):
    """All filters, biases and penalties in all combinations, greedy ones among them."""

    def one():
        biases = rng.choice(vocab_size, rng.choice([0, 0, 3]), replace=False).tolist()
        return SamplingParams(
            max_tokens=9,
            temperature=float(rng.choice([0.0, 0.3, 0.8, 1.0, 2.0])),
            min_p=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
            top_k=int(rng.choice([0, 0, 1, 2, 7, vocab_size, vocab_size + 9])),
            top_p=float(rng.choice([1.0, 1.0, 0.95, 0.5, 0.01])),
            repetition_penalty=float(rng.choice([1.0, 1.0, 1.3, 0.7])),
            presence_penalty=float(rng.choice([0.0, 0.0, 0.5])),
            frequency_penalty=float(rng.choice([0.0, 0.0, 0.3, -0.2])),
            logit_bias=tuple((token, float(rng.choice([-5.0, 1.5]))) for token in biases),
            seed=int(rng.integers(-(2**63), 2**63)),
        )

    return [one() for _ in range(count)]
