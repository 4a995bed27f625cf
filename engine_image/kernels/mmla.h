// Products of small matrices as Arm has them (BFMMLA of FEAT_BF16, USMMLA of FEAT_I8MM): this header alone knows the
// instructions.
//
// Each multiplies a square: two outputs' weights by two rows' inputs, 8 bytes of each.
#pragma once

#include "simd.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
#define INFLIGHT_MMLA
#endif

namespace inflight {

#if defined(INFLIGHT_MMLA)
constexpr bool kMmla = true;
static_assert(kLanes == 4, "a register is a square");

// sum [2 outputs][2 rows] += weights [2 outputs][4] * inputs [2 rows][4], bfloat16.
//
// For each two inputs: sum = sum + (w[0] * x[0] + w[1] * x[1]), each operation rounded to odd, denormals as zeros (Arm
// ARM, BFMMLA, FPCR.EBF = 0, as Linux leaves it).
INFLIGHT_INLINE f32v multiply_square(f32v sum, u32v weights, u32v inputs) {
  return (f32v)vbfmmlaq_f32((float32x4_t)sum, (bfloat16x8_t)weights, (bfloat16x8_t)inputs);
}

// The same of integers, exact: weights [2 outputs][8], 0 .. 255, and inputs [2 rows][8], -128 .. 127.
INFLIGHT_INLINE i32v multiply_square(i32v sum, u32v weights, u32v inputs) {
  return (i32v)vusmmlaq_s32((int32x4_t)sum, (uint8x16_t)weights, (int8x16_t)inputs);
}

// [2 rows]: 8 bytes of each.
INFLIGHT_INLINE u32v join_rows(const void* first, const void* second) {
  return (u32v)vcombine_u64(load<uint64x1_t>(first), load<uint64x1_t>(second));
}

// The four outputs of a row from two squares side by side; and squares from rows.
template <class V>
INFLIGHT_INLINE V first_row(V left, V right) {
  return (V)vuzp1q_u32((uint32x4_t)left, (uint32x4_t)right);
}
template <class V>
INFLIGHT_INLINE V second_row(V left, V right) {
  return (V)vuzp2q_u32((uint32x4_t)left, (uint32x4_t)right);
}
INFLIGHT_INLINE f32v left_square(f32v first, f32v second) {
  return (f32v)vzip1q_f32((float32x4_t)first, (float32x4_t)second);
}
INFLIGHT_INLINE f32v right_square(f32v first, f32v second) {
  return (f32v)vzip2q_f32((float32x4_t)first, (float32x4_t)second);
}
#else
constexpr bool kMmla = false;
#endif

}  // namespace inflight
