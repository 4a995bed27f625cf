// What becomes of a panel's sums: bias, activation, and where they go.
#pragma once

#include "gemm.h"

namespace inflight {

// Zeros after a row's last of `columns`, for tile products to read.
inline void pad_rounded(uint16_t* end, int64_t columns) {
  if (kTiles && columns % kTileInputs != 0) memset(end, 0, 2 * (kTileInputs - columns % kTileInputs));
}

INFLIGHT_INLINE f32v silu(f32v x) { return x / (exp(-x) + 1.0f); }

// Only the first `count` lanes are there.
INFLIGHT_INLINE void put(float* to, f32v x, int64_t count, bool add) {
  if (count >= kLanes) {
    store(to, add ? load<f32v>(to) + x : x);
    return;
  }
  float lane[kLanes];
  store(lane, x);
  for (int64_t i = 0; i < count; i++) to[i] = add ? to[i] + lane[i] : lane[i];
}

INFLIGHT_INLINE void put_rounded(uint16_t* to, f32v x, int64_t count) {
  if (count >= kLanes) {
    store_bf16(to, x);
    return;
  }
  uint16_t lane[kLanes];
  store_bf16(lane, x);
  for (int64_t i = 0; i < count; i++) to[i] = lane[i];
}

// Sums [rows, kPanel] of rows from `row` on, with one panel.
inline void finish(const Output& out, const float* sums, int64_t row, int rows, int64_t panel) {
  f32v bias[2] = {};
  for (int c = 0; c < 2 && out.bias; c++) bias[c] = load<f32v>(out.bias + panel * kPanel + c * kLanes);
  const int64_t width = out.kind == Output::kSiluMul ? kLanes : kPanel, column = panel * width;
  const int64_t left = out.columns - column;
  for (int r = 0; r < rows; r++, sums += kPanel) {
    f32v result[2] = {load<f32v>(sums) + bias[0], load<f32v>(sums + kLanes) + bias[1]};
    if (out.kind == Output::kSiluMul) result[0] = silu(result[0]) * result[1];
    const int64_t at = (row + r) * out.stride + column;
    for (int c = 0; c * kLanes < width && c * kLanes < left; c++) {
      if (out.rounded != nullptr) {
        put_rounded(out.rounded + at + c * kLanes, result[c], left - c * kLanes);
      } else {
        put(out.values + at + c * kLanes, result[c], left - c * kLanes, out.kind == Output::kAdd);
      }
    }
    if (out.rounded != nullptr && left <= width) pad_rounded(out.rounded + at + left, out.columns);
  }
}

// So that a tile's results need not wait for the lines that they go to.
inline void prefetch_output(const Output& out, int64_t row, int rows, int64_t panel) {
  const int64_t column = panel * (out.kind == Output::kSiluMul ? kLanes : kPanel);
  for (int r = 0; r < rows; r++) {
    const int64_t at = (row + r) * out.stride + column;
    if (out.rounded != nullptr) {
      __builtin_prefetch(out.rounded + at, 1);
    } else {
      __builtin_prefetch(out.values + at, 1);
      __builtin_prefetch(out.values + at + kLanes, 1);
    }
  }
}

}  // namespace inflight
