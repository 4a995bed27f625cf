"""Where the integers, scales and zero points of a packed matrix lie in a checkpoint, for each of three producers.

- AWQ (AutoAWQ, awq/modules/linear/gemm.py): `qweight` int32 [in, out / 8], `qzeros` int32 [groups, out / 8], `scales`
  [groups, out]; the eight outputs of a word lie in the order 0, 2, 4, 6, 1, 3, 5, 7, the first in its lowest bits.
- GPTQ (AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py): `qweight` int32 [in * bits / 32, out], `qzeros`
  int32 [groups, out * bits / 32], `scales` [groups, out] and `g_idx` int32 [in], the group of each input, in any order
  with act-order; the first in a word's lowest bits. The first format stores zero points less one.
- pack-quantized (compressed-tensors, compressors/pack_quantized): `weight_packed` int32 [out, in * bits / 32],
  `weight_scale` [out, groups], `weight_zero_point` int32 [out * bits / 32, groups], `weight_shape` int64 [2] and, with
  act-order, `weight_g_idx` int32 [in]. Signed integers are stored with half their range added, and so are zero points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from inflight_engine.models.checkpoints.quantization_scheme import PackedScheme
from inflight_engine.models.matrices import GroupedMatrix

_WORD = 32
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place of each of eight outputs in a word."""


class StoredTensors(Protocol):
    """A checkpoint's tensors as they are in its files."""

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        """Read a tensor or a part of it, as `WeightSource.get`."""

    def shape(self, name: str) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How one producer stores the matrix of a module.

    Attributes:
        integers_name: the tensor that a module has if and only if it is quantized.
        shape: (outputs, inputs) of a module.
        read: rows and columns of a module's matrix.
    """

    integers_name: str
    shape: Callable[[StoredTensors, str, PackedScheme], tuple[int, int]]
    read: Callable[[StoredTensors, str, PackedScheme, range, range], GroupedMatrix]


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [n, 32 / bits * m] of int32 [n, m], each word from its lowest bits; `bits`: 4 or 8."""
    # Machines and checkpoints are little-endian. `contiguous` would leave the strides of a single column as they are.
    octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], dim=-1).flatten(-2)


def _unpack_part(
    stored: StoredTensors,
    name: str,
    dim: int,
    part: range,
    others: range,
    bits: int,
    order: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """uint8 [others, part] of a tensor that is packed along `dim`.

    Args:
        part: along the dimension that is packed; it may begin and end inside a word.
        others: along the other one.
        order: place in a word of each of its integers; None: ascending.
    """
    per_word = _WORD // bits
    first, last = part.start // per_word, -(-part.stop // per_word)
    if stored.shape(name)[1 - dim] == len(others):
        words = stored.get(name, dim, range(first, last))
    else:
        words = stored.get(name, 1 - dim, others).narrow(dim, first, last - first)
    integers = unpack(words.t() if dim == 0 else words, bits)
    if order is not None:
        integers = integers.view(len(integers), -1, per_word)[..., list(order)].flatten(1)
    return integers[:, part.start - first * per_word : part.stop - first * per_word]


def _awq_shape(stored: StoredTensors, module: str, scheme: PackedScheme) -> tuple[int, int]:
    inputs, words = stored.shape(f"{module}.qweight")
    return words * _WORD // scheme.bits, inputs


def _read_awq(stored: StoredTensors, module: str, scheme: PackedScheme, rows: range, columns: range) -> GroupedMatrix:
    inputs = stored.shape(f"{module}.qweight")[0]
    group_of = _group_of(stored, None, f"{module}.scales", 0, scheme, inputs)
    groups = range(stored.shape(f"{module}.qzeros")[0])
    integers = _unpack_part(stored, f"{module}.qweight", 1, rows, columns, 4, _AWQ_ORDER).t()
    zeros = _unpack_part(stored, f"{module}.qzeros", 1, rows, groups, 4, _AWQ_ORDER).t()
    scales = stored.get(f"{module}.scales", 1, rows).t()
    return _cut_groups(integers, scales, zeros, group_of[columns.start : columns.stop], scheme)


def _gptq_shape(stored: StoredTensors, module: str, scheme: PackedScheme) -> tuple[int, int]:
    words, outputs = stored.shape(f"{module}.qweight")
    return outputs, words * _WORD // scheme.bits


def _read_gptq(stored: StoredTensors, module: str, scheme: PackedScheme, rows: range, columns: range) -> GroupedMatrix:
    inputs = _gptq_shape(stored, module, scheme)[1]
    group_of = _group_of(stored, f"{module}.g_idx", f"{module}.scales", 0, scheme, inputs)
    groups = range(stored.shape(f"{module}.qzeros")[0])
    integers = _unpack_part(stored, f"{module}.qweight", 0, columns, rows, scheme.bits)
    zeros = _unpack_part(stored, f"{module}.qzeros", 1, rows, groups, scheme.bits).t()
    scales = stored.get(f"{module}.scales", 1, rows).t()
    return _cut_groups(integers, scales, zeros, group_of[columns.start : columns.stop], scheme)


def _pack_quantized_shape(stored: StoredTensors, module: str, scheme: PackedScheme) -> tuple[int, int]:
    outputs, inputs = stored.get(f"{module}.weight_shape").tolist()
    return outputs, inputs


def _read_pack_quantized(
    stored: StoredTensors, module: str, scheme: PackedScheme, rows: range, columns: range
) -> GroupedMatrix:
    inputs = _pack_quantized_shape(stored, module, scheme)[1]
    group_of = _group_of(stored, f"{module}.weight_g_idx", f"{module}.weight_scale", 1, scheme, inputs)
    integers = _unpack_part(stored, f"{module}.weight_packed", 1, columns, rows, scheme.bits)
    scales = stored.get(f"{module}.weight_scale", 0, rows)
    if scheme.has_zeros:
        groups = range(scales.shape[1])
        zeros = _unpack_part(stored, f"{module}.weight_zero_point", 0, rows, groups, scheme.bits).t()
    else:
        zeros = torch.full(scales.shape, 1 << (scheme.bits - 1), dtype=torch.uint8)
    return _cut_groups(integers, scales, zeros, group_of[columns.start : columns.stop], scheme)


LAYOUTS = {
    "awq": Layout("qweight", _awq_shape, _read_awq),
    "gptq": Layout("qweight", _gptq_shape, _read_gptq),
    "pack-quantized": Layout("weight_packed", _pack_quantized_shape, _read_pack_quantized),
}


def _group_of(
    stored: StoredTensors, index: str | None, scales: str, dim: int, scheme: PackedScheme, inputs: int
) -> torch.Tensor:
    """int64 [in]: the group of each input.

    Args:
        index: the tensor that says so, where groups need not follow each other; -1 in it: they do.
        scales: the tensor of the scales; its `dim` is that of the groups.

    Raises:
        ValueError: there are not as many groups as scales.
    """
    num_groups = stored.shape(scales)[dim]
    if index is not None and index in stored:
        groups = stored.get(index).long()
        if groups.shape != (inputs,) or int(groups.max()) >= num_groups:
            raise ValueError(f"tensor {index} must name one of {num_groups} groups for each of {inputs} inputs")
        if int(groups.min()) >= 0:
            return groups
    size = scheme.group_size or inputs
    if num_groups != -(-inputs // size):
        raise ValueError(
            f"tensor {scales} has the shape {list(stored.shape(scales))}, which does not fit {inputs} inputs in groups "
            f"of {size}; check group_size in quantization_config"
        )
    return torch.arange(inputs) // size


def _cut_groups(
    integers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_of: torch.Tensor, scheme: PackedScheme
) -> GroupedMatrix:
    """Make a matrix with only the groups that its inputs have."""
    first, last = int(group_of.min()), int(group_of.max()) + 1
    zeros = zeros[:, first:last].to(torch.int16) + scheme.zero_offset
    return GroupedMatrix(integers, scales[:, first:last], zeros, group_of - first, scheme.bits)
