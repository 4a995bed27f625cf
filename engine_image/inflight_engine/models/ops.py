"""The operators of a decoder that are worth a kernel of their own: the small ones between matrix products, which memory
bandwidth bounds, and what products with small or quantized weights need.

`Ops` is the interface; `TorchOps` computes it with plain torch on any device, and is the reference for the others.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from inflight_engine.models.matrices import Int4Matrix

FP8_MAX = 448.0
"""Largest finite float8_e4m3fn."""
FP8_LEAST_SCALE = 1 / (FP8_MAX * 512)
"""Minimum scale of a row, that of vLLM: rows of zeros have a scale too."""


class Ops(Protocol):
    """Shapes: T packed tokens. Results have the dtype of x; sums inside are float32."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual), both [T, hidden]; may overwrite its inputs."""

    def rotary(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split a projection, normalise queries and keys per head where the model does, and rotate them (halves of a
        head are the pairs, as in Hugging Face's models); may overwrite qkv.

        Args:
            qkv: [T, (num_heads + 2 * num_kv_heads) * D].
            positions: int64 [T].
            table: float32 [max positions, D]: cosines of the D / 2 angles, then sines.
            norms: weights of the query's and the key's norm, [D] each (Qwen3).

        Returns:
            Queries [T, num_heads, D], keys and values [T, num_kv_heads, D].
        """

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up: [T, n] of [T, 2 n], the gate first."""

    def quantize_rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, n] as float8_e4m3fn [T, n] times float32 [T, 1]: each row's largest magnitude becomes 448."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[T, out] of x [T, in] and weight [out, in], contiguous."""

    def wide_linear(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """float32 [T, out] of x [T, in] and weight [out, in]. `out`: gets them."""

    def int4_linear(self, x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        """[T, out] of x [T, in]; weights are rounded to x's dtype, as if they had been dequantized to it, or not at
        all."""


class TorchOps:
    """See `Ops`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = x + residual
        return self.rms_norm(residual, weight, eps), residual

    def rotary(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, -1)
        rotated, values = heads[:, : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
        if norms is not None:
            queries = self.rms_norm(rotated[:, :num_heads], norms[0], eps)
            rotated = torch.cat([queries, self.rms_norm(rotated[:, num_heads:], norms[1], eps)], dim=1)
        cos, sin = table[positions][:, None].to(qkv.dtype).chunk(2, dim=-1)  # [T, 1, D / 2]
        first, second = rotated.chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return rotated[:, :num_heads], rotated[:, num_heads:], values

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def quantize_rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        scales = (wide.abs().amax(1, keepdim=True) / FP8_MAX).clamp(min=FP8_LEAST_SCALE)
        return (wide / scales).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def wide_linear(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        product = F.linear(x, weight)
        return product.float() if out is None else out.copy_(product)

    def int4_linear(self, x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, matrix.dequantized(x.dtype), bias)
