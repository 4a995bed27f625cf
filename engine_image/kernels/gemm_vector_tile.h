// A tile of a product in vector registers: some rows by one panel, with all sums in registers.
#pragma once

#include "gemm.h"

namespace inflight {

// At most so many rows: their sums, a panel's two registers and a broadcast fill the registers.
constexpr int kVectorTileRows = kVectorBlockRows / 8;

// R rows, `stride` apart. Three rows share a pointer, so that addresses (pointer, + stride, + 2 stride) need no more
// registers than there are; the compiler must not know how the pointers hang together, or it undoes that.
template <class T, int R>
struct RowPointers {
  const T* at[(R + 2) / 3];
  int64_t stride;

  INFLIGHT_INLINE RowPointers(const T* first, int64_t stride_) : stride(stride_) {
    for (int i = 0; i < (R + 2) / 3; i++) at[i] = first + 3 * i * stride;
  }
  INFLIGHT_INLINE void advance(int64_t columns) {
    for (int i = 0; i < (R + 2) / 3; i++) {
      at[i] += columns;
      asm("" : "+r"(at[i]));
    }
  }
  INFLIGHT_INLINE const T* row(int r) const { return at[r / 3] + r % 3 * stride; }
};

// Prefetch into the cache: the panel after this one, a share of it with each tile.
struct Ahead {
  const uint8_t* at;
  int64_t step;  // bytes for one register pair of weights

  INFLIGHT_INLINE void go() {
    prefetch_far(at);
    if (step > kCacheLine) prefetch_far(at + kCacheLine);
    at += step;
  }
};

struct Tile {
  const Input* x;
  int64_t row;
  const uint8_t* weights;  // from input `begin` on
  int64_t begin, end;      // inputs
  Ahead ahead;
  float* sums;  // [rows, kPanel]: the result, and what it starts from unless `first`
  bool first;
};

using TileFunction = void (*)(const Tile&);

// Returns the function for a number of rows, for formats other than float32; only where `kMmla`.
TileFunction mmla_function(Format format, int rows);

}  // namespace inflight
