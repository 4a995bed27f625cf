// The gain of multiplying bfloat16 in the units that this variant is for, on this CPU.
#include <chrono>
#include <cmath>

#include "matrix.h"
#include "mmla.h"
#include "simd.h"
#include "tiles.h"

using namespace inflight;

#if defined(__x86_64__)
#define INFLIGHT_VECTOR_REGISTER "+v"
#elif defined(__aarch64__)
#define INFLIGHT_VECTOR_REGISTER "+w"
#endif

#if defined(INFLIGHT_VECTOR_REGISTER)
namespace {

constexpr int kRounds = 2000;

// The least time of several tries, in nanoseconds; `rounds` makes kRounds of something.
template <class Rounds>
double time_of(const Rounds& rounds) {
  double least = INFINITY;
  for (int attempt = 0; attempt < 5; attempt++) {
    const auto begin = std::chrono::steady_clock::now();
    rounds();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    least = time.count() < least ? time.count() : least;
  }
  return least / kRounds;
}

// Time of a step of many independent chains, which hide the latency; `step` takes and returns a sum.
template <class Step>
double time_of_step(const Step& step) {
  constexpr int kChains = 12;
  const double time = time_of([&] {
    f32v sum[kChains] = {};  // here, so that registers hold it
    for (int i = 0; i < kRounds; i++)
#pragma GCC unroll 16
      for (int c = 0; c < kChains; c++) {
        sum[c] = step(sum[c]);
        asm volatile("" : INFLIGHT_VECTOR_REGISTER(sum[c]));
      }
  });
  return time / kChains;
}

#if defined(INFLIGHT_MMLA)
// Time of a product of two numbers in bfloat16.
double time_of_bf16() {
  const u32v x = (u32v)splat(0.5f);
  return time_of_step([&](f32v sum) { return multiply_square(sum, x, x); }) / (2 * 2 * kBf16Run);
}
#else
// Time of a product of tiles, among four that are independent, with the loads that they need.
double time_of_tile_product() {
  alignas(kCacheLine) const uint8_t numbers[4 * 1024] = {};
  TileScope tiles;
  const double time = time_of([&] {
    for (int i = 0; i < kRounds; i++) {
      tiles.load<4>(numbers, 64);
      tiles.load<5>(numbers + 1024, 64);
      tiles.load<6>(numbers + 2048, 64);
      tiles.load<7>(numbers + 3072, 64);
      tiles.multiply_bf16<0, 4, 6>();
      tiles.multiply_bf16<1, 4, 7>();
      tiles.multiply_bf16<2, 5, 6>();
      tiles.multiply_bf16<3, 5, 7>();
    }
  });
  return time / 4;
}

// Time of a product of two numbers in bfloat16.
double time_of_bf16() {
  if (kHasTileInstructions) return time_of_tile_product() / (kTileHeight * 16 * kTileInputs);
  const u32v x = (u32v)splat(0.5f);
  return time_of_step([&](f32v sum) { return dot_bf16(sum, x, x); }) / (2 * kLanes);
}
#endif

}  // namespace
#endif

// How many times as many products a second this CPU does in bfloat16 as in float32, measured in some tenths of a
// millisecond. 0: this variant does not do them in bfloat16, or not by instructions.
INFLIGHT_EXPORT double inflight_bf16_gain() {
#if defined(INFLIGHT_VECTOR_REGISTER)
  if (!kHasTileInstructions && !kHasDotBf16 && !kMmla) return 0;
  const f32v x = splat(0.5f);
  return time_of_step([&](f32v sum) { return fma(x, x, sum); }) / kLanes / time_of_bf16();
#else
  return 0;
#endif
}
