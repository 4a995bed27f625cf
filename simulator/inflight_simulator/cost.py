"""Duration of simulated steps, and files of cost models."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, get_type_hints

import msgspec

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache.loading import LoadRates
from inflight_simulator.errors import InputError


class Cost(Protocol):
    """Seconds of a step."""

    def seconds(self, work: StepWork) -> float: ...


class UnitCost:
    """A step takes 1 s and prefill is free, as in textbook comparisons of batching."""

    def seconds(self, work: StepWork) -> float:
        return 1.0


LLAMA_8B_H100 = CostModel(
    base_s=4.8e-3,
    decode_seq_s=3.2e-5,
    prefill_token_s=3.2e-5,
    decode_kv_token_s=3.9e-8,
    prefill_context_token_s=1.1e-9,
    copied_token_s=2.6e-6,
)
"""The default: arithmetic on data sheets, not a measurement, of Llama-3-8B in bfloat16 on one H100 SXM.

Every step reads the weights (16.1 GB at 3.35 TB/s); a token computes 2 x 8.03e9 operations and 4 x 32 layers x 4096 for
each token it attends to, at half of 989e12 a second; a decode reads 131,072 bytes for each token of its context; copies
go over PCIe 5.0 at 50 GB/s. `inflight-simulate calibrate` fits the factors to a run of a real engine.
"""

_CostFile = msgspec.defstruct(
    "_CostFile",
    [(name, kind, getattr(LLAMA_8B_H100, name)) for name, kind in get_type_hints(CostModel).items()],
    frozen=True,
    forbid_unknown_fields=True,
)
"""The fields of `CostModel`, none of which has to be given."""

_PREFILL = 512
"""Length of the prompt by which the cost of recomputing a token is estimated."""


def load_rates(cost: Cost) -> LoadRates | None:
    """Rates by which the scheduler decides between loading and computing; None: computing is free, so nothing is
    loaded."""
    if not isinstance(cost, CostModel):
        return None
    prefill_s = cost.seconds(StepWork(0, _PREFILL, 0, 0)) - cost.seconds(StepWork(0, 0, 0, 0))
    copy = 1 / cost.copied_token_s if cost.copied_token_s else math.inf
    return LoadRates(prefill=_PREFILL / prefill_s, copy=copy) if prefill_s > 0 else None


def prefill_cost(cost: Cost) -> CostModel | None:
    """Cost model with which the scheduler predicts prefills; None: prefill is free."""
    return cost if isinstance(cost, CostModel) else None


def read_cost(path: Path) -> CostModel:
    """The cost model written by `calibrate --out`; missing factors keep their defaults.

    Raises:
        InputError: the file cannot be read, or is not a JSON object of factors in seconds.
    """
    try:
        cost = CostModel(**msgspec.structs.asdict(msgspec.json.decode(path.read_bytes(), type=_CostFile)))
        check_cost(cost)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return cost


def check_cost(cost: CostModel) -> None:
    """Raises InputError: a factor is negative or not finite, the curve is none, or a step could take no time."""
    factors = asdict(cost)
    curve = factors.pop("curve")
    tokens = [each for each, _ in curve]
    if tokens != sorted(set(tokens)) or not all(0 <= seconds < float("inf") for _, seconds in curve):
        raise InputError("curve must be pairs of tokens, ascending, and seconds of 0 or more")
    for name, value in factors.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"{name} must be 0 or more, not {value}")
    least = min((seconds for _, seconds in curve), default=0)
    if cost.base_s + least + min(cost.decode_seq_s, cost.prefill_token_s) == 0:
        raise InputError("base_s must be above 0 unless decode_seq_s and prefill_token_s are: each step takes time")


def write_cost(path: Path, cost: CostModel) -> None:
    """Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(cost), indent=2) + b"\n")
