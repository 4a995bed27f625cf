// The softmax of attention, of a piece of context at a time; exponentials are powers of 2, which need no reduction of
// their argument.
#pragma once

#include <cstdint>
#include <limits>

#include "attention_plan.h"
#include "simd.h"

namespace inflight {

constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 0 to 1.5 units in the last place; 0 below -126.
INFLIGHT_INLINE f32v exp2_nonpositive(f32v x) {
  const f32v magic = splat(12582912.0f);  // 1.5 * 2^23: the sum's last bits are the nearest integer
  const f32v clamped = x < -126.0f ? splat(-126.0f) : x;
  const f32v shifted = clamped + magic;
  const f32v r = clamped - (shifted - magic);
  f32v p = splat(1.535336188319500e-4f);  // Cephes' polynomial of exp2f
  p = fma(p, r, splat(1.339887440266574e-3f));
  p = fma(p, r, splat(9.618437357674640e-3f));
  p = fma(p, r, splat(5.550332471162809e-2f));
  p = fma(p, r, splat(2.402264791363012e-1f));
  p = fma(p, r, splat(6.931472028550421e-1f));
  p = fma(p, r, splat(1.0f));
  const f32v power = (f32v)((i32v)p + ((i32v)shifted << 23));
  return x < -126.0f ? f32v{} : power;
}

INFLIGHT_INLINE f32v tanh(f32v x) {
  const f32v square = x * x;
  f32v p = splat(-5.70498872745e-3f);  // Cephes' polynomial of tanhf near 0, where the quotient below would cancel
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  const f32v near = fma(p * square, x, x), far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return ((x < 0.625f) & (x > -0.625f)) ? near : far;
}

// Factor of a query with which `softmax` gets scores in its unit.
inline float query_factor(const KVCache& cache) {
  return cache.softcap > 0 ? cache.scale / cache.softcap : cache.scale * kLog2E;
}

// Turns a row's scores of tokens begin .. end - 1 of a piece into weights relative to the greatest; 0 outside its
// context, which is relative to the piece, too. Returns that greatest score, times log2 e, and the weights' sum.
// The context holds at least one of the tokens; begin and end are multiples of kLanes.
inline void softmax(float* scores, int64_t begin, int64_t end, Context context, float softcap, float* top,
                    float* total) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  i32v lane;
  for (int i = 0; i < kLanes; i++) lane[i] = i;
  f32v greatest = splat(kMinusInfinity);
  for (int64_t i = begin; i < end; i += kLanes) {
    f32v x = load<f32v>(scores + i);
    const bool masked = i < context.lo || i + kLanes > context.hi;
    if (softcap > 0) x = softcap * kLog2E * tanh(x);
    if (masked) {
      const i32v token = lane + int32_t(i);
      x = ((token >= int32_t(context.lo)) & (token < int32_t(context.hi))) ? x : splat(kMinusInfinity);
    }
    greatest = max(x, greatest);
    if (softcap > 0 || masked) store(scores + i, x);
  }
  *top = reduce_max(greatest);
  f32v sum = {};
  for (int64_t i = begin; i < end; i += kLanes) {
    const f32v weight = exp2_nonpositive(load<f32v>(scores + i) - *top);
    sum += weight;
    store(scores + i, weight);
  }
  *total = reduce_add(sum);
}

// The softmax of one row so far: sums of values, not yet divided by the sum of weights, relative to the greatest score.
struct Row {
  float* mixed;  // [head_dim]
  float* top;    // greatest score, times log2 e
  float* total;  // sum of weights
};

inline void start(Row row, const float* mixed, float top, float total, int64_t head_dim) {
  memcpy(row.mixed, mixed, head_dim * sizeof(float));
  *row.top = top;
  *row.total = total;
}

// Add a piece's result to that of the pieces before it (Dao et al. 2022). Not inlined, so that all its callers round
// alike.
__attribute__((noinline)) inline void fold(Row row, const float* mixed, float top, float total, int64_t head_dim) {
  const bool higher = top > *row.top;
  const f32v less = exp2_nonpositive(splat(higher ? *row.top - top : top - *row.top));
  const f32v old_factor = higher ? less : splat(1.0f), new_factor = higher ? splat(1.0f) : less;
  for (int64_t d = 0; d < head_dim; d += kLanes)
    store(row.mixed + d, fma(load<f32v>(row.mixed + d), old_factor, load<f32v>(mixed + d) * new_factor));
  *row.total = fma(splat(*row.total), old_factor, total * new_factor)[0];
  if (higher) *row.top = top;
}

}  // namespace inflight
