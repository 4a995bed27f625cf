"""Weights of a product in the forms in which they stay in memory when they are quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

_HALVES = (128, 64, 32)
"""Values that `Int4Matrix.half` may have, the best first: the number of bytes of a row that are read at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Matrix:
    """A weight is its value times its row's scale.

    Attributes:
        values: float8_e4m3fn [out, in].
        scales: float32 [out].
    """

    values: torch.Tensor
    scales: torch.Tensor

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in]."""
        return self.values.float().mul_(self.scales[:, None]).to(dtype)

    def to(self, device: torch.device) -> Fp8Matrix:
        return Fp8Matrix(self.values.to(device), self.scales.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class GroupedMatrix:
    """A weight is (integer - zero) * scale, of its row and of its input's group.

    Attributes:
        integers: uint8 [out, in], each below 2 ** bits.
        scales: [out, groups], in the file's dtype.
        zeros: int16 [out, groups], at most 2 ** bits.
        group_of: int64 [in], the group of each input.
        bits: of an integer.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group_of: torch.Tensor
    bits: int

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in]. In float32 a product is exact, so that it is rounded once."""
        weights = self.integers.float()
        weights.sub_(self.zeros.float().index_select(1, self.group_of))
        return weights.mul_(self.scales.float().index_select(1, self.group_of)).to(dtype)

    def to(self, device: torch.device) -> GroupedMatrix:
        return GroupedMatrix(
            self.integers.to(device),
            self.scales.to(device),
            self.zeros.to(device),
            self.group_of.to(device),
            self.bits,
        )


Matrix: TypeAlias = torch.Tensor | Fp8Matrix | GroupedMatrix
"""Weights [out, in] as a checkpoint has them."""


@dataclass(frozen=True, slots=True, eq=False)
class Int4Matrix:
    """Weights of 4 bits in the order in which products read them: a weight is (integer - zero) * scale.

    Attributes:
        packed: uint8 [out, in / 2]. With h = `half`, byte h b + j has input 2 h b + j in its lower four bits and
            2 h b + h + j in its upper.
        scales: [groups, out], in the file's dtype.
        zeros: uint8 [groups, out].
        half: inputs that lie side by side, all of one group; 128, 64 or 32.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    half: int

    @property
    def outputs(self) -> int:
        return self.packed.shape[0]

    @property
    def inputs(self) -> int:
        return 2 * self.packed.shape[1]

    @property
    def group_size(self) -> int:
        return self.inputs // len(self.scales)

    def grouped(self) -> GroupedMatrix:
        """The same weights, an integer a byte."""
        blocks = self.packed.view(self.outputs, -1, 1, self.half)
        integers = torch.cat([blocks & 15, blocks >> 4], dim=2).view(self.outputs, self.inputs)
        group_of = torch.arange(self.inputs, device=integers.device) // self.group_size
        return GroupedMatrix(integers, self.scales.t(), self.zeros.t(), group_of, 4)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in]."""
        return self.grouped().dequantized(dtype)


def joined_fp8(matrices: Sequence[Fp8Matrix]) -> Fp8Matrix:
    """Join matrices to one with the outputs of all."""
    values = torch.cat([each.values.view(torch.uint8) for each in matrices]).view(torch.float8_e4m3fn)
    return Fp8Matrix(values, torch.cat([each.scales for each in matrices]))


def why_not_int4(matrices: Sequence[GroupedMatrix]) -> str | None:
    """Return the reason why matrices cannot become one `Int4Matrix` with the outputs of all; None: they can."""
    first = matrices[0]
    inputs, groups = len(first.group_of), first.scales.shape[1]
    if any(each.bits != 4 for each in matrices):
        return f"they have {first.bits} bits"
    if any(not torch.equal(each.group_of, first.group_of) for each in matrices[1:]):
        return "projections that are computed together differ in the order of their inputs"
    if inputs % groups or (torch.bincount(first.group_of, minlength=groups) != inputs // groups).any():
        return "groups differ in size, as where tensor parallelism cuts them apart"
    if _half_of(inputs, inputs // groups) is None:
        return f"{inputs} inputs in groups of {inputs // groups} are no whole blocks of {2 * _HALVES[-1]}"
    return None


def pack_int4(matrices: Sequence[GroupedMatrix]) -> tuple[Int4Matrix, torch.Tensor | None]:
    """Join matrices that `why_not_int4` accepts to one with the outputs of all.

    Returns:
        The matrix, and the order int64 [in] in which it takes its inputs; None: as they are.
    """
    group_of = matrices[0].group_of
    order = None if bool((group_of.diff() >= 0).all()) else torch.argsort(group_of, stable=True)
    integers = torch.cat([each.integers for each in matrices])
    if order is not None:
        integers = integers.index_select(1, order)
    scales = torch.cat([each.scales for each in matrices]).t().contiguous()
    zeros = torch.cat([each.zeros for each in matrices]).t().to(torch.uint8).contiguous()
    half = _half_of(len(group_of), len(group_of) // len(scales))
    assert half is not None, "why_not_int4 is asked first"
    halves = integers.reshape(len(integers), -1, 2, half)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
    return Int4Matrix(packed, scales, zeros, half), order


def _half_of(inputs: int, group_size: int) -> int | None:
    return next((half for half in _HALVES if group_size % half == 0 and inputs % (2 * half) == 0), None)
