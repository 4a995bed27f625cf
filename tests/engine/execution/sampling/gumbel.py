"""The reference for the kernels of `gumbel_triton`, in plain torch, and a device's sampler that runs it on a CPU."""

from __future__ import annotations

import torch

from inflight_engine.execution.sampling.device_sampler import DeviceSampler
from inflight_engine.execution.sampling.slot_table import (
    FREQUENCY,
    MIN_P,
    MOST_MET,
    NUM_BIASES,
    PRESENCE,
    REPETITION,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SlotTable,
)

MASS_UNIT = 2.0**-40
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


class PlainSampler(DeviceSampler):
    """Samples in plain torch where a GPU runs the kernels."""

    def choose(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return choose(logits, slots, positions, self._table)

    def count(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        count(slots, token_ids, self._table)


def choose(logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, table: SlotTable) -> torch.Tensor:
    """See `Sampler.choose`; the logits stay as they are."""
    numbers, integers = table.numbers[slots], table.integers[slots]
    edited = edit(logits, slots, table)
    temperature = numbers[:, TEMPERATURE, None].float()
    is_greedy = temperature == 0
    shifted = (edited - edited.amax(dim=-1, keepdim=True)) / torch.where(is_greedy, 1.0, temperature)
    kept = keep(edited, shifted.exp(), numbers[:, MIN_P], integers[:, TOP_K], numbers[:, TOP_P])
    noise = -exponential(integers[:, SEED], positions, logits.shape[1]).log()
    return torch.where(is_greedy, edited, torch.where(kept, shifted + noise, -torch.inf)).argmax(dim=-1)


def count(slots: torch.Tensor, token_ids: torch.Tensor, table: SlotTable) -> None:
    """See `Sampler.count`."""
    at = slots * table.vocab_size + token_ids
    met = table.met.take(at)
    table.met.put_(at, torch.where(met <= MOST_MET - 1, met + 2, met))


def edit(logits: torch.Tensor, slots: torch.Tensor, table: SlotTable) -> torch.Tensor:
    """Return float32 [N, V]: logits after logit_bias, then penalties, see `Penalties`."""
    edited = logits.clone()
    is_biased = torch.arange(table.bias_tokens.shape[1], device=logits.device) < table.integers[slots, NUM_BIASES, None]
    edited.scatter_add_(1, table.bias_tokens[slots].long(), torch.where(is_biased, table.bias_values[slots], 0))
    repetition, presence, frequency = (
        table.numbers[slots, column, None].float() for column in (REPETITION, PRESENCE, FREQUENCY)
    )
    is_penalised = (repetition != 1) | (presence != 0) | (frequency != 0)
    met = torch.where(is_penalised, table.met[slots], 0)
    count = met >> 1
    repeated = torch.where(edited > 0, edited / repetition, edited * repetition)
    edited = torch.where(met > 0, repeated, edited) - frequency * count
    return torch.where(count > 0, edited - presence, edited)


def keep(
    logits: torch.Tensor, weights: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Return bool [N, V]: the tokens that pass the filters.

    Args:
        logits: float32 [N, V]: order the tokens. weights: float32 [N, V]: unnormalised probabilities, 1 for the most
            likely token.
        min_p, top_k, top_p: [N].
    """
    possible = (weights > 0) & (weights >= min_p[:, None].float())
    order = torch.where(possible, logits, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    possible = possible.gather(-1, order)
    possible &= possible.cumsum(dim=-1) <= top_k[:, None]
    masses = (weights / MASS_UNIT).long().gather(-1, order) * possible
    reached = masses.cumsum(dim=-1)
    goal = (top_p * reached[:, -1]).ceil().long()[:, None]
    possible &= (reached - masses < goal) | (top_p[:, None] >= 1)
    return torch.empty_like(possible).scatter_(-1, order, possible)


def exponential(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Draw float32 [N, V] from the standard exponential distribution, positive and finite. The negated logarithms
    follow the standard Gumbel distribution.

    Args:
        seeds, positions: int64 [N].
    """
    stream = _splitmix64(_splitmix64(seeds) + positions)[:, None]
    outputs = _splitmix64(stream + torch.arange(vocab_size, device=seeds.device) * _GOLDEN)
    share = (_shift_right(outputs, 24).float() + 0.5) * 2.0**-40
    share = share.clamp(max=1 - 2.0**-24)
    # -log(1 - share): that of a small share must not lose its last bits, for it decides which token is drawn.
    return torch.where(share < 2.0**-10, share * (1 + share * (0.5 + share * (1 / 3))), -(1 - share).log())


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    x = x + _GOLDEN  # wraps, as it should
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 as if it had no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
