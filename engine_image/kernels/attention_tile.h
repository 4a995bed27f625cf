// The two products of attention, a few rows at a time with all sums in registers.
//
// Every sum has one order: over dimensions for scores, over tokens (of one piece) for values, one term after another;
// where products are those of matrix tiles, in the order of `TwoChains`. So a row's result is the same bits whatever
// rows it shares a tile with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attention_plan.h"
#include "simd.h"
#include "tiles.h"

namespace inflight {

constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int kMostRows = 6;  // with kTileVectors sums each, as registers allow

// A sum of products, term after term.
struct OneChain {
  f32v sum = {};

  INFLIGHT_INLINE void add(int, f32v a, f32v b) { sum = fma(a, b, sum); }
  INFLIGHT_INLINE void fold() {}
};

// A sum of products in the order of tiles: terms with `which` 0 are the even ones; fold after kTileInputs terms and
// after the last.
struct FoldedChains {
  f32v sum = {};
  TwoChains chains;

  INFLIGHT_INLINE void add(int which, f32v a, f32v b) {
    f32v& chain = which == 0 ? chains.even : chains.odd;
    chain = fma(a, b, chain);
  }
  INFLIGHT_INLINE void fold() {
    sum = chains.onto(sum);
    chains = {};
  }
};

// Tokens of a piece are taken in whole spans: sums of tiles have so many terms.
constexpr int64_t kSpan = kTiles ? kTileInputs : kLanes;

// Elements of the cache. `kPair` of them share a 32-bit lane, so a register holds kLanes lanes whatever the type.
struct Float32 {
  using Sum = OneChain;
  static constexpr int kMostRows = inflight::kMostRows;
  static constexpr int kPair = 1;
  static constexpr bool kRounds = false;  // queries and weights, to the cache's type
  static INFLIGHT_INLINE f32v element(const uint8_t* from, int) { return load<f32v>(from); }
};
struct BFloat16 {
  using Sum = std::conditional_t<kTiles, FoldedChains, OneChain>;
  static constexpr int kMostRows = kTiles ? inflight::kMostRows / 2 : inflight::kMostRows;
  static constexpr int kPair = 2;
  static constexpr bool kRounds = kTiles;
  static INFLIGHT_INLINE f32v element(const uint8_t* from, int which) {
    const u32v pairs = load<u32v>(from);
    return which == 0 ? widen_first(pairs) : widen_second(pairs);
  }
};

// A kv head's part of a piece of context, in columns of kLanes tokens.
struct Columns {
  const uint8_t* keys[kPiece / kLanes + kTileVectors];  // past the last, the last again
  const uint8_t* values[kPiece / kLanes + kTileVectors];
  int64_t num_columns;
  int64_t key_stride;  // bytes from a (pair of) dimensions to the next
  int64_t head_dim, num_steps;  // num_steps: (pairs of) dimensions
};

// Brings the keys of columns into the second-level cache, some at each call.
class KeyFetcher {
 public:
  explicit KeyFetcher(const Columns& columns)
      : column_(columns.keys), last_(columns.keys + columns.num_columns - 1), at_(*column_), left_(columns.num_steps),
        stride_(columns.key_stride), num_steps_(columns.num_steps) {}

  template <int COUNT>
  INFLIGHT_INLINE void fetch() {
    for (int i = 0; i < COUNT; i++) prefetch_far(at_ + i * stride_);
    at_ += COUNT * stride_;
    left_ -= COUNT;
    if (left_ == 0) {
      if (column_ < last_) column_++;
      at_ = *column_;
      left_ = num_steps_;
    }
  }

 private:
  const uint8_t* const* column_;
  const uint8_t* const* last_;
  const uint8_t* at_;
  int64_t left_, stride_, num_steps_;
};

// scores[r][v] = q[r] . keys of column first + v, for ROWS rows and VECTORS columns. The values of the same tokens and
// the next columns' keys are brought nearer on the way.
//
// q: rows of head_dim. scores: rows of kPiece.
template <class Element, int ROWS, int VECTORS>
INFLIGHT_INLINE void score_tile(const float* q, const Columns& columns, int64_t first, float* scores) {
  typename Element::Sum sums[ROWS][VECTORS];
  const uint8_t *key[VECTORS], *next[VECTORS], *value[VECTORS];
  for (int v = 0; v < VECTORS; v++) {
    key[v] = columns.keys[first + v];
    next[v] = columns.keys[first + VECTORS + v];
    value[v] = columns.values[first + v];
  }
  const int64_t head_dim = columns.head_dim, stride = columns.key_stride;
  const int64_t block = Element::kRounds ? kTileInputs : head_dim;
  for (int64_t d = 0, at = 0, value_at = 0; d < head_dim;) {
    for (const int64_t end = std::min(d + block, head_dim); d < end;
         d += Element::kPair, at += stride, value_at += 4 * kLanes) {
      for (int v = 0; v < VECTORS; v++) prefetch(next[v] + at);
      for (int v = 0; v < VECTORS; v++) prefetch_far(value[v] + value_at);
      for (int which = 0; which < Element::kPair; which++) {
        f32v k[VECTORS];
        for (int v = 0; v < VECTORS; v++) k[v] = Element::element(key[v] + at, which);
        for (int r = 0; r < ROWS; r++) {
          const f32v x = splat(q[r * head_dim + d + which]);
          for (int v = 0; v < VECTORS; v++) sums[r][v].add(which, x, k[v]);
        }
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECTORS; v++) sums[r][v].fold();
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) store(scores + r * kPiece + (first + v) * kLanes, sums[r][v].sum);
}

// mixed[r][v] = sum over tokens begin .. end - 1 of the piece, of weights[r] * values of kLanes dimensions from
// `dimension` on. The next piece's keys are brought nearer on the way.
//
// weights: rows of kPiece. begin: a multiple of kSpan. Nothing at or after `end` is read as a number: it may be left
// over from another sequence. mixed: rows of head_dim.
template <class Element, int ROWS, int VECTORS>
INFLIGHT_INLINE void value_tile(const float* weights, const Columns& columns, int64_t begin, int64_t end,
                                int64_t dimension, KeyFetcher* next_keys, float* mixed) {
  typename Element::Sum sums[ROWS][VECTORS];
  KeyFetcher fetcher = *next_keys;
  const auto add = [&](const uint8_t* values, int which, const float* weight) {
    f32v x[VECTORS];
    for (int v = 0; v < VECTORS; v++) x[v] = Element::element(values + v * kLanes * 4, which);
    for (int r = 0; r < ROWS; r++) {
      const f32v w = splat(weight[r * kPiece]);
      for (int v = 0; v < VECTORS; v++) sums[r][v].add(which, w, x[v]);
    }
  };
  const int64_t pair_bytes = columns.head_dim * 4;
  for (int64_t token = begin; token < end;) {
    const uint8_t* values = columns.values[token / kLanes] + dimension * 4;
    const int64_t column_end = end - token < kLanes ? end : token + kLanes;
    for (; token + Element::kPair <= column_end; token += Element::kPair, values += pair_bytes) {
      fetcher.template fetch<VECTORS>();
      for (int which = 0; which < Element::kPair; which++) add(values, which, weights + token + which);
    }
    if (token < column_end) add(values, 0, weights + token++);
    if (token % kSpan == 0 || token == end)
      for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v].fold();
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++)
      store(mixed + r * columns.head_dim + dimension + v * kLanes, sums[r][v].sum);
  *next_keys = fetcher;
}

}  // namespace inflight
