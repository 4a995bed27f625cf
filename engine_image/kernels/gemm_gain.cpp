// What the CPU gains by multiplying bfloat16 in the units that this variant is for.
#include <chrono>
#include <cmath>

#include "simd.h"
#include "tiles.h"

using namespace inflight;

#if defined(__x86_64__)
namespace {

// The least time in nanoseconds of many rounds of `round`, of several tries.
template <class Round>
double time_of(const Round& round) {
  constexpr int kRounds = 2000, kTries = 5;
  double least = INFINITY;
  for (int attempt = 0; attempt < kTries; attempt++) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRounds; i++) round();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    least = time.count() < least ? time.count() : least;
  }
  return least;
}

// Of one step of many independent chains, which hide the latency; `step` takes and gives a sum.
template <class Step>
double time_of_step(const Step& step) {
  constexpr int kChains = 12;
  f32v sum[kChains] = {};
  return time_of([&] {
#pragma GCC unroll 16
           for (int c = 0; c < kChains; c++) {
             sum[c] = step(sum[c]);
             asm volatile("" : "+v"(sum[c]));
           }
         }) / kChains;
}

// Of one product of tiles, among four that are independent, with the loads that they need.
double time_of_tile_product() {
  alignas(kCacheLine) const uint8_t numbers[64 * 64] = {};
  TileScope tiles;
  const double time = time_of([&] {
    tiles.load<4>(numbers, 64);
    tiles.load<5>(numbers + 1024, 64);
    tiles.load<6>(numbers + 2048, 64);
    tiles.load<7>(numbers + 3072, 64);
    tiles.multiply_bf16<0, 4, 6>();
    tiles.multiply_bf16<1, 4, 7>();
    tiles.multiply_bf16<2, 5, 6>();
    tiles.multiply_bf16<3, 5, 7>();
  });
  return time / 4;
}

}  // namespace
#endif

// How many times as many products a second this CPU does in bfloat16 as in float32, measured in some tenths of a
// millisecond. 0: this variant does not do them in bfloat16, or not by instructions.
INFLIGHT_EXPORT double inflight_bf16_gain() {
#if defined(__x86_64__)
  if (!kHasTileInstructions && !kHasDotBf16) return 0;
  const f32v x = splat(0.5f);
  const double singles = time_of_step([&](f32v sum) { return fma(x, x, sum); }) / kLanes;
  if (kHasTileInstructions) return singles / (time_of_tile_product() / (kTileHeight * 16 * kTileInputs));
  return singles / (time_of_step([&](f32v sum) { return dot_bf16(sum, (u32v)x, (u32v)x); }) / (2 * kLanes));
#else
  return 0;
#endif
}
