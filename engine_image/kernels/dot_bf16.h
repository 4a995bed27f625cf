// Products of bfloat16 in vectors: this header alone knows AVX512-BF16.
#pragma once

#include "simd.h"

namespace inflight {

#if defined(__AVX512BF16__)
constexpr bool kHasDotBf16 = true;
#else
constexpr bool kHasDotBf16 = false;
#endif

// Lane by lane c + a.first * b.first + a.second * b.second; only where kHasDotBf16. It flushes denormals and rounds in
// its own way.
INFLIGHT_INLINE f32v dot_bf16(f32v c, u32v a, u32v b) {
#if defined(__AVX512BF16__)
  return (f32v)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
  return fma(widen_second(a), widen_second(b), fma(widen_first(a), widen_first(b), c));
#endif
}

}  // namespace inflight
