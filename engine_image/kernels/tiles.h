// Matrix tiles as Intel's AMX has them: this header alone knows the instructions. Tests have a variant in which the same
// functions compute the same bits without them.
//
// A tile is 16 rows of 64 bytes. Its element formats and the products' order are those of TDPBF16PS and TDPBSUD (Intel
// SDM, volume 2).
#pragma once

#include "simd.h"

namespace inflight {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
constexpr bool kHasTileInstructions = true;
#else
constexpr bool kHasTileInstructions = false;
#endif

// Products of bfloat16 are those of tiles, bit for bit, whether tiles or vectors compute them; activations are rounded.
#if defined(INFLIGHT_EMULATE_TILES)
constexpr bool kTiles = true;
#else
constexpr bool kTiles = kHasTileInstructions;
#endif

constexpr int kTileHeight = 16;  // rows of a tile
constexpr int kTileInputs = 32;  // inputs, in bfloat16, of one product; a row's sums are folded after so many
constexpr int kTileBytes = 64;   // inputs, in int8, of one product

// The order of a product's sums in vectors: lane i adds 32 inputs in two chains, the even ones and the odd ones, which
// start from zero. With denormals flushed (`FlushDenormals`), this gives the bits of TDPBF16PS. A NaN is a NaN in both;
// which one where several meet is open.
struct TwoChains {
  f32v even = {}, odd = {};

  INFLIGHT_INLINE void add(f32v a_even, f32v a_odd, f32v b_even, f32v b_odd) {
    even = fma(a_even, b_even, even);
    odd = fma(a_odd, b_odd, odd);
  }
  INFLIGHT_INLINE f32v onto(f32v sum) const { return sum + (even + odd); }
};

// While it lives, this thread's float instructions take denormal numbers for zeros and give zeros for them, as tile
// products always do. Nothing where products are not those of tiles.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() { set(before_ | 0x8040); }
  ~FlushDenormals() { set(before_); }

 private:
  // The compiler does not know that arithmetic depends on it, but keeps loads and stores where they are.
  static void set(unsigned mxcsr) {
    if (!kTiles) return;
    asm volatile("" : : : "memory");
    _mm_setcsr(mxcsr);
    asm volatile("" : : : "memory");
  }
  const unsigned before_ = _mm_getcsr();
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif

 public:
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
};

// The eight tiles of this thread while it lives, each 16 rows of 64 bytes. Making and ending one takes 60 ns: once for
// many products, not more than one at a time. Tiles are numbered 0 .. 7; strides are bytes from a row to the next.
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)

class TileScope {
 public:
  TileScope() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64, "as LDTILECFG reads it");
    for (int i = 0; i < 8; i++) {
      config.row_bytes[i] = 64;
      config.rows[i] = kTileHeight;
    }
    // Not _tile_loadconfig: GCC 12 takes it to read 8 bytes and drops the stores to the others.
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

  template <int TILE>
  INFLIGHT_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
  }
  // Not _tile_loadd: GCC 12 takes it to read no memory.
  template <int TILE>
  INFLIGHT_INLINE void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
  }
  template <int TILE>
  INFLIGHT_INLINE void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
  }
  // C [16][16] float32 += A [16][32] * B [16][16][2], bfloat16: B's rows are pairs of inputs.
  template <int C, int A, int B>
  INFLIGHT_INLINE void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  // C [16][16] int32 += A [16][64], -128 .. 127, * B [16][16][4], 0 .. 255: B's rows are four inputs each.
  template <int C, int A, int B>
  INFLIGHT_INLINE void multiply_int8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

#elif defined(INFLIGHT_EMULATE_TILES)
#include <emulated_tiles.h>
#else

// For code that is compiled and, without `kTiles`, not called.
class TileScope {
 public:
  template <int TILE>
  void zero() {}
  template <int TILE>
  void load(const void*, int64_t) {}
  template <int TILE>
  void store(void*, int64_t) {}
  template <int C, int A, int B>
  void multiply_bf16() {}
  template <int C, int A, int B>
  void multiply_int8() {}
};

#endif

}  // namespace inflight
