"""Matrix products whose rows do not depend on how many rows there are, for the batch-invariant mode on a GPU.

cuBLAS chooses a kernel by the shapes, and its kernels add in different orders, so a token's hidden state differs in its
last bits with the size of the batch (He et al. 2025, "Defeating Nondeterminism in LLM Inference"). Here one kernel with
one tile computes all products: an element is the sum over K in steps of one length in one order, whatever M is.

The price: the tile suits no shape really well. A large prefill reaches a part of what cuBLAS does, because the tile is
small; and a product with few columns does not fill the device at decode, because K is not split.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE_M, _TILE_N, _TILE_K = 64, 64, 64
_GROUP_M = 8

_overrides: list[torch.library.Library] = []
"""Libraries of the registrations, which hold as long as their library lives."""


@triton.jit(do_not_specialize=["M"])
def matmul_kernel(
    a: tl.tensor,
    b: tl.tensor,
    bias: tl.tensor,
    c: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    a_stride_m: tl.tensor,
    a_stride_k: tl.tensor,
    b_stride_k: tl.tensor,
    b_stride_n: tl.tensor,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Compute c [M, N] = a [M, K] b [K, N] + bias [N], each program one tile of c."""
    # Programs that run together share rows of a and columns of b in L2.
    program = tl.program_id(0)
    tiles_m = tl.cdiv(M, TILE_M)
    group_size = GROUP_M * tl.cdiv(N, TILE_N)
    first_m = program // group_size * GROUP_M
    rows_in_group = tl.minimum(tiles_m - first_m, GROUP_M)
    tile_m = first_m + program % group_size % rows_in_group
    tile_n = program % group_size // rows_in_group
    rows = (tile_m * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)[:, None]
    columns = (tile_n * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)[None, :]
    steps = tl.arange(0, TILE_K).to(tl.int64)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in range(0, K, TILE_K):
        ks = start + steps
        a_tile = tl.load(
            a + rows * a_stride_m + ks[None, :] * a_stride_k, mask=(rows < M) & (ks[None, :] < K), other=0.0
        )
        b_tile = tl.load(
            b + ks[:, None] * b_stride_k + columns * b_stride_n, mask=(ks[:, None] < K) & (columns < N), other=0.0
        )
        total = tl.dot(a_tile, b_tile, total, input_precision="ieee")  # float32 is not cut to 10 bits
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(c + rows * N + columns, total.to(c.dtype.element_ty), mask=(rows < M) & (columns < N))


def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return a [M, K] times b [K, N] plus bias [N], [M, N] in their dtype; sums are float32."""
    rows, columns = a.shape[0], b.shape[1]
    c = a.new_empty(rows, columns)
    if c.numel():
        matmul_kernel[(triton.cdiv(rows, _TILE_M) * triton.cdiv(columns, _TILE_N),)](
            a,
            b,
            a if bias is None else bias,  # not read without
            c,
            rows,
            columns,
            a.shape[1],
            *a.stride(),
            *b.stride(),
            TILE_M=_TILE_M,
            TILE_N=_TILE_N,
            TILE_K=_TILE_K,
            GROUP_M=_GROUP_M,
            HAS_BIAS=bias is not None,
            num_warps=4,
            num_stages=3,
            enable_fp_fusion=True,
        )
    return c


def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """`torch.addmm` as linear layers call it.

    Raises:
        ValueError: for what no linear layer asks.
    """
    if beta != 1 or alpha != 1 or bias.dim() != 1:
        raise ValueError("batch_invariant has no scaled products or sums of matrices; this model needs it off")
    return matmul(a, b, bias)


def use_for_all_products() -> None:
    """Compute every later product of two matrices on a GPU in this process by `matmul`: all linear layers
    and the head."""
    if _overrides:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("mm", matmul, "CUDA")  # type: ignore[no-untyped-call]
    library.impl("addmm", addmm, "CUDA")  # type: ignore[no-untyped-call]
    _overrides.append(library)
