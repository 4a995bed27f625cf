// Vectors of the width that one variant of the library is compiled for, in GCC's vector extensions: arithmetic and
// comparison are the plain operators. Intrinsics stand only here, for what the extensions cannot say.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace inflight {

// Lanes of 32 bits in a register: 16 with AVX-512, 8 with AVX2, 4 in plain SSE2 or NEON. Vectors wider than the
// registers compile too, but GCC keeps those in memory: so does the variant for tests, which has AVX2 alone and the
// layouts of tiles.
#if defined(__AVX512F__) || defined(INFLIGHT_EMULATE_TILES)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Vectors that the CPU's registers hold at a time.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#elif defined(INFLIGHT_EMULATE_TILES)
constexpr int kRegisters = 8;
#else
constexpr int kRegisters = 16;
#endif

constexpr int kCacheLine = 64;

typedef float f32v __attribute__((vector_size(4 * kLanes)));
typedef int32_t i32v __attribute__((vector_size(4 * kLanes)));
typedef uint32_t u32v __attribute__((vector_size(4 * kLanes)));
typedef uint16_t u16v __attribute__((vector_size(2 * kLanes)));  // as many lanes, half as wide
typedef uint8_t u8v __attribute__((vector_size(4 * kLanes)));    // four times as many lanes

#define INFLIGHT_INLINE inline __attribute__((always_inline))
#define INFLIGHT_EXPORT extern "C" __attribute__((visibility("default")))

// No alignment is asked for.
template <class V>
INFLIGHT_INLINE V load(const void* from) {
  V v;
  memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
INFLIGHT_INLINE void store(void* to, V v) {
  memcpy(to, &v, sizeof(V));
}

INFLIGHT_INLINE f32v splat(float x) { return x - f32v{}; }  // not a sum: -0 + 0 is 0
INFLIGHT_INLINE i32v splat(int32_t x) { return x - i32v{}; }
INFLIGHT_INLINE u32v splat(uint32_t x) { return x - u32v{}; }

// a * b + c; one rounding where the CPU has the instruction.
INFLIGHT_INLINE f32v fma(f32v a, f32v b, f32v c) {
#if defined(__AVX512F__)
  return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && !defined(INFLIGHT_EMULATE_TILES)
  return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (f32v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;  // for which the compiler takes the instruction, if there is one
#endif
}

INFLIGHT_INLINE f32v max(f32v a, f32v b) { return a > b ? a : b; }
INFLIGHT_INLINE f32v min(f32v a, f32v b) { return a < b ? a : b; }

INFLIGHT_INLINE f32v to_float(i32v x) { return __builtin_convertvector(x, f32v); }

// To the nearest integer, ties to even; |x| < 2^22.
INFLIGHT_INLINE i32v round_to_int(f32v x) {
#if defined(__AVX512F__)
  return (i32v)_mm512_cvtps_epi32((__m512)x);
#elif defined(INFLIGHT_EMULATE_TILES)
  const float* lanes = reinterpret_cast<const float*>(&x);
  const __m256i halves[2] = {_mm256_cvtps_epi32(load<__m256>(lanes)), _mm256_cvtps_epi32(load<__m256>(lanes + 8))};
  return load<i32v>(halves);
#elif defined(__AVX2__)
  return (i32v)_mm256_cvtps_epi32((__m256)x);
#else
  const f32v magic = splat(12582912.0f);  // 1.5 * 2^23: the sum's last bits are the integer
  return (i32v)(x + magic) - (i32v)magic;
#endif
}

// The sum and the greatest of all lanes, by halves: the order does not depend on anything but kLanes.
INFLIGHT_INLINE float reduce_add(f32v x) {
  float lane[kLanes];
  store(lane, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
  return lane[0];
}

INFLIGHT_INLINE float reduce_max(f32v x) {
  float lane[kLanes];
  store(lane, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}

// e^x to 2 units in the last place; 0 below -87.3, as softmax wants it; at most e^88.
INFLIGHT_INLINE f32v exp(f32v x) {
  const f32v clamped = min(x, splat(88.0f));
  const f32v n = to_float(round_to_int(max(clamped, splat(-88.0f)) * 1.44269504088896341f));
  f32v r = fma(n, splat(-0.693359375f), clamped);  // ln 2 in two parts (Cody and Waite)
  r = fma(n, splat(2.12194440e-4f), r);
  f32v p = splat(1.9875691500e-4f);  // Cephes' polynomial of expf
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const f32v scale = (f32v)((round_to_int(n) + 127) << 23);
  return x < -87.3f ? f32v{} : p * scale;
}

// bfloat16 is the upper half of a float32. A register of 32-bit lanes holds pairs: the first element is the lower half.
INFLIGHT_INLINE f32v widen_first(u32v pairs) { return (f32v)(pairs << 16); }
INFLIGHT_INLINE f32v widen_second(u32v pairs) { return (f32v)(pairs & 0xffff0000u); }

INFLIGHT_INLINE f32v load_bf16(const uint16_t* from) {
  return (f32v)(__builtin_convertvector(load<u16v>(from), u32v) << 16);
}

INFLIGHT_INLINE float widen(uint16_t bf16) {
  const uint32_t bits = uint32_t(bf16) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Rounds to nearest, ties to even; finite values only.
INFLIGHT_INLINE uint16_t narrow(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INFLIGHT_INLINE u32v narrow_to_upper(f32v x) {  // bfloat16 in the upper half of each lane, rubbish in the lower
  const u32v bits = (u32v)x;
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

INFLIGHT_INLINE void store_bf16(uint16_t* to, f32v x) {
  store(to, __builtin_convertvector(narrow_to_upper(x) >> 16, u16v));
}

// kLanes numbers to the nearest ones that bfloat16 has.
INFLIGHT_INLINE void round_bf16(float* x) { store(x, (f32v)(narrow_to_upper(load<f32v>(x)) & 0xffff0000u)); }

// Pairs of bfloat16: lane i is (first[i], second[i]).
INFLIGHT_INLINE u32v narrow_pairs(f32v first, f32v second) {
  return (narrow_to_upper(first) >> 16) | (narrow_to_upper(second) & 0xffff0000u);
}

// Lane by lane c + the sum over four bytes of a (0 .. 255) times b (-128 .. 127), exact.
INFLIGHT_INLINE i32v dot_i8(i32v c, u8v a, u8v b) {
#if defined(__AVX512VNNI__)
  return (i32v)_mm512_dpbusd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
#else
  const u32v ua = (u32v)a;
  const i32v sb = (i32v)b;
  c += (i32v)(ua & 0xffu) * ((sb << 24) >> 24);
  c += (i32v)((ua >> 8) & 0xffu) * ((sb << 16) >> 24);
  c += (i32v)((ua >> 16) & 0xffu) * ((sb << 8) >> 24);
  c += (i32v)(ua >> 24) * (sb >> 24);
  return c;
#endif
}

INFLIGHT_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }     // to all caches
INFLIGHT_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // to the second one

INFLIGHT_INLINE void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace inflight
