// Matrix tiles as Intel's AMX has them: this header alone knows the instructions. Where the variant has none, the same
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

#else

class TileScope {
 public:
  TileScope() = default;
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

  template <int TILE>
  void zero() {
    memset(tiles_[TILE], 0, sizeof tiles_[TILE]);
  }
  template <int TILE>
  void load(const void* from, int64_t stride) {
    for (int row = 0; row < kTileHeight; row++)
      memcpy(tiles_[TILE][row], static_cast<const uint8_t*>(from) + row * stride, 64);
  }
  template <int TILE>
  void store(void* to, int64_t stride) {
    for (int row = 0; row < kTileHeight; row++)
      memcpy(static_cast<uint8_t*>(to) + row * stride, tiles_[TILE][row], 64);
  }
  template <int C, int A, int B>
  void multiply_bf16() {
    multiply_bf16(tiles_[C], tiles_[A], tiles_[B]);
  }
  template <int C, int A, int B>
  void multiply_int8() {
    multiply_int8(tiles_[C], tiles_[A], tiles_[B]);
  }

 private:
  using Tile = uint32_t[kTileHeight][16];

  static void multiply_bf16(Tile& c, const Tile& a, const Tile& b) {
    const FlushDenormals flush;
    for (int row = 0; row < kTileHeight; row++)
      for (int column = 0; column < 16; column += kLanes) {
        TwoChains chains;
        for (int k = 0; k < 16; k++) {
          const u32v x = splat(a[row][k]), w = inflight::load<u32v>(&b[k][column]);
          chains.add(widen_first(x), widen_second(x), widen_first(w), widen_second(w));
        }
        inflight::store(&c[row][column], chains.onto(inflight::load<f32v>(&c[row][column])));
      }
  }

  static void multiply_int8(Tile& c, const Tile& a, const Tile& b) {
    for (int row = 0; row < kTileHeight; row++)
      for (int column = 0; column < 16; column += kLanes) {
        i32v sum = inflight::load<i32v>(&c[row][column]);
        for (int k = 0; k < 16; k++)
          sum = dot_i8(sum, inflight::load<u8v>(&b[k][column]), (u8v)splat(a[row][k]));
        inflight::store(&c[row][column], sum);
      }
  }

  alignas(kCacheLine) Tile tiles_[8] = {};
};

#endif

}  // namespace inflight
