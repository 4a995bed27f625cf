// The two products of attention, a few rows at a time with all sums in registers.
//
// Every sum has one order: over dimensions for scores, over tokens (of one piece) for values, one term after another.
// So a row's result is the same bits whatever rows it shares a tile with.
#pragma once

#include <cstdint>

#include "simd.h"

namespace inflight {

constexpr int kTileVectors = kLanes == 16 ? 4 : 2;  // with kMostRows accumulators each, as registers allow
constexpr int kMostRows = 6;

// Elements of the cache. `kPair` of them share a 32-bit lane, so a register holds kLanes lanes whatever the type.
struct Float32 {
  static constexpr int kPair = 1;
  static INFLIGHT_INLINE f32v element(const uint8_t* from, int) { return load<f32v>(from); }
};
struct BFloat16 {
  static constexpr int kPair = 2;
  static INFLIGHT_INLINE f32v element(const uint8_t* from, int which) {
    const u32v pairs = load<u32v>(from);
    return which == 0 ? widen_first(pairs) : widen_second(pairs);
  }
};

// scores[r][v] = q[r] . keys of kLanes tokens at keys[v], for ROWS rows and VECTORS registers of tokens.
//
// q: rows of head_dim. stride: bytes from a (pair of) dimensions to the next. row_floats: from a row of scores to the
// next. ahead: keys that will be wanted next, brought in on the way.
template <class Element, int ROWS, int VECTORS>
INFLIGHT_INLINE void score_tile(const float* q, int64_t head_dim, const uint8_t* const* keys, int64_t stride,
                                const uint8_t* const* ahead, float* scores, int64_t row_floats) {
  f32v sums[ROWS][VECTORS] = {};
  const uint8_t *key[VECTORS], *next[VECTORS];
  for (int v = 0; v < VECTORS; v++) key[v] = keys[v], next[v] = ahead[v];
  for (int64_t d = 0, at = 0; d < head_dim; d += Element::kPair, at += stride) {
    for (int v = 0; v < VECTORS; v++) prefetch(next[v] + at);
    for (int which = 0; which < Element::kPair; which++) {
      f32v k[VECTORS];
      for (int v = 0; v < VECTORS; v++) k[v] = Element::element(key[v] + at, which);
      for (int r = 0; r < ROWS; r++) {
        const f32v x = splat(q[r * head_dim + d + which]);
        for (int v = 0; v < VECTORS; v++) sums[r][v] = fma(x, k[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) store(scores + r * row_floats + v * kLanes, sums[r][v]);
}

// Where the values of one kv head lie, block by block.
struct ValueBlocks {
  const uint8_t* base;       // of block 0
  int64_t block_bytes;       // from a block to the next
  const int64_t* block_ids;  // by position / block_size
  int64_t block_size;
};

// mixed[r][v] = sum over tokens lo .. hi - 1 of weights[r][token - lo] * values of kLanes dimensions from `first` on.
//
// lo is even. Nothing at or after hi is read as a number: it may be left over from another sequence.
template <class Element, int ROWS, int VECTORS>
INFLIGHT_INLINE void value_tile(const float* weights, int64_t row_floats, const ValueBlocks& blocks, int64_t lo,
                                int64_t hi, int64_t head_dim, int64_t first, float* mixed) {
  f32v sums[ROWS][VECTORS] = {};
  const int64_t pair_bytes = head_dim * 4;
  const auto add = [&](const uint8_t* values, int which, const float* weight) {
    f32v x[VECTORS];
    for (int v = 0; v < VECTORS; v++) x[v] = Element::element(values + v * kLanes * 4, which);
    for (int r = 0; r < ROWS; r++) {
      const f32v w = splat(weight[r * row_floats]);
      for (int v = 0; v < VECTORS; v++) sums[r][v] = fma(w, x[v], sums[r][v]);
    }
  };
  int64_t index = lo / blocks.block_size, offset = lo % blocks.block_size;
  for (int64_t token = lo; token < hi; index++, offset = 0) {
    const uint8_t* values = blocks.base + blocks.block_ids[index] * blocks.block_bytes + first * 4 +
                            offset / Element::kPair * pair_bytes;
    const int64_t in_block = blocks.block_size - offset;
    const int64_t end = hi - token < in_block ? hi : token + in_block;
    for (; token + Element::kPair <= end; token += Element::kPair, values += pair_bytes)
      for (int which = 0; which < Element::kPair; which++) add(values, which, weights + (token - lo) + which);
    if (token < end) add(values, 0, weights + (token++ - lo));
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) store(mixed + r * head_dim + first + v * kLanes, sums[r][v]);
}

}  // namespace inflight
