// Completion of a panel's sums: bias, activation, and storing.
#pragma once

#include "gemm.h"

namespace inflight {

// Zeros after a row's last of `columns`, which are even, as far as products read.
inline void pad_rounded(uint16_t* end, int64_t columns) {
  if (kBf16Unit > 2 && columns % kBf16Unit != 0) memset(end, 0, 2 * (kBf16Unit - columns % kBf16Unit));
}

INFLIGHT_INLINE f32v silu(f32v x) { return x / (exp(-x) + 1.0f); }

// To element `at` of the output; only the first `count` lanes are there.
INFLIGHT_INLINE void put(const Output& out, int64_t at, f32v x, int64_t count) {
  if (out.rounded != nullptr) {
    uint16_t lane[kLanes];
    store_bf16(count >= kLanes ? out.rounded + at : lane, x);
    for (int64_t i = 0; i < count && count < kLanes; i++) out.rounded[at + i] = lane[i];
    return;
  }
  float* to = out.values + at;
  const bool add = out.kind == Output::kAdd;
  if (count >= kLanes) {
    store(to, add ? load<f32v>(to) + x : x);
    return;
  }
  float lane[kLanes];
  store(lane, x);
  for (int64_t i = 0; i < count; i++) to[i] = add ? to[i] + lane[i] : lane[i];
}

// Sums [rows, kPanel] of rows from `row` on, with one panel.
inline void finish(const Output& out, const float* sums, int64_t row, int rows, int64_t panel) {
  f32v bias[2] = {};
  for (int c = 0; c < 2 && out.bias; c++) bias[c] = load<f32v>(out.bias + panel * kPanel + c * kLanes);
  const int64_t width = out.kind == Output::kSiluMul ? kLanes : kPanel, column = panel * width;
  const int64_t left = out.columns - column;
  for (int r = 0; r < rows; r++, sums += kPanel) {
    const f32v first = load<f32v>(sums) + bias[0], second = load<f32v>(sums + kLanes) + bias[1];
    const int64_t at = (row + r) * out.stride + column;
    if (out.kind == Output::kSiluMul) {
      put(out, at, silu(first) * second, left);
    } else {
      put(out, at, first, left);
      if (left > kLanes) put(out, at + kLanes, second, left - kLanes);
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
