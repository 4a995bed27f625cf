// The two products of attention by matrix tiles, many rows at a time: the bits of `attention_tile.h` in BFloat16.
//
// A tile of keys or values is read as it lies in the cache: pairs of dimensions by 16 tokens, pairs of tokens by 16
// dimensions.
#pragma once

#include <cstdint>

#include "attention_plan.h"
#include "attention_tile.h"
#include "tile_square.h"

namespace inflight {

// Where the values of each span of a piece begin: [kSpan / 2][head_dim][2], without gaps.
struct ValueSpans {
  const uint8_t* at[kPiece / kSpan];
};

// Spans that do not lie so in the cache, or have tokens from `end` on, are copied to `space` [kPiece * head_dim], with
// zeros from `end` on: what lies there may be no number, and a weight of 0 does not undo that.
inline ValueSpans find_value_spans(const Columns& columns, int64_t begin, int64_t end, uint16_t* space) {
  const int64_t column_bytes = columns.head_dim * kLanes * 2, span_values = columns.head_dim * kSpan;
  ValueSpans spans;
  for (int64_t span = begin / kSpan; span * kSpan < end; span++) {
    const uint8_t* const* values = columns.values + span * (kSpan / kLanes);
    const int64_t count = end - span * kSpan;  // kSpan or more: all of them
    if (count >= kSpan && values[1] == values[0] + column_bytes) {
      spans.at[span] = values[0];
      continue;
    }
    uint16_t* to = space + span * span_values;
    spans.at[span] = reinterpret_cast<const uint8_t*>(to);
    for (int64_t token = 0; token < kSpan; token += 2, to += 2 * columns.head_dim) {
      const uint8_t* from = values[token / kLanes] + token % kLanes / 2 * columns.head_dim * 4;
      if (token >= count) {
        memset(to, 0, columns.head_dim * 4);
      } else if (token + 1 < count) {
        memcpy(to, from, columns.head_dim * 4);
      } else {
        for (int64_t d = 0; d < columns.head_dim; d += kLanes) store(to + 2 * d, load<u32v>(from + 4 * d) & 0xffffu);
      }
    }
  }
  return spans;
}

// scores[r] = q[r] . keys of tokens begin .. end - 1, and of what fills the last two columns, for HEIGHT * 16 rows.
//
// q: bfloat16 rows of head_dim, a multiple of kTileInputs. scores: rows of kPiece. begin: a multiple of kSpan.
template <int HEIGHT>
inline void score_matrix(TileScope& tiles, const uint16_t* q, const Columns& columns, int64_t begin, int64_t end,
                         float* scores) {
  const int64_t head_dim = columns.head_dim, stride = columns.key_stride;
  for (int64_t token = begin; token < end; token += 2 * kLanes) {
    const uint8_t* const* keys = columns.keys + token / kLanes;
    zero_sums<HEIGHT>(tiles);
    for (int64_t d = 0; d < head_dim; d += kTileInputs) {
      const int64_t at = d / 2 * stride;
      load_step<HEIGHT>(tiles, q + d, 2 * head_dim, keys[0] + at, keys[1] + at, stride);
      multiply_bf16<HEIGHT>(tiles);
    }
    store_sums<HEIGHT>(tiles, scores + token, kPiece * sizeof(float));
  }
}

// mixed[r] = sum over tokens begin .. end - 1 of the piece, of weights[r] * values, for HEIGHT * 16 rows.
//
// weights: bfloat16 rows of kPiece, zeros from `end` to the end of its span. begin: a multiple of kSpan. mixed: rows of
// head_dim, a multiple of kTileInputs.
template <int HEIGHT>
inline void mix_matrix(TileScope& tiles, const uint16_t* weights, const ValueSpans& values, int64_t begin, int64_t end,
                       int64_t head_dim, float* mixed) {
  const int64_t stride = head_dim * 4;
  for (int64_t d = 0; d < head_dim; d += 2 * kLanes) {
    zero_sums<HEIGHT>(tiles);
    for (int64_t token = begin; token < end; token += kSpan) {
      const uint8_t* from = values.at[token / kSpan] + d * 4;
      load_step<HEIGHT>(tiles, weights + token, kPiece * sizeof(uint16_t), from, from + kLanes * 4, stride);
      multiply_bf16<HEIGHT>(tiles);
    }
    store_sums<HEIGHT>(tiles, mixed + d, stride);
  }
}

}  // namespace inflight
