// The two products of attention by matrix tiles, many rows at a time: the bits of `attention_tile.h` in BFloat16.
//
// A tile of keys or values is read as it lies in the cache: pairs of dimensions by 16 tokens, pairs of tokens by 16
// dimensions. C tiles are numbered 0 .. 3, A tiles (queries, weights) 4 and 5, B tiles 6 and 7.
#pragma once

#include <cstdint>

#include "attention_plan.h"
#include "attention_tile.h"
#include "tiles.h"

namespace inflight {

constexpr int kMatrixRows = 2 * kTileHeight;

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

// scores[r] = q[r] . keys of tokens begin .. end - 1, and of what fills the last two columns, for TILES * 16 rows.
//
// q: bfloat16 rows of head_dim, a multiple of kTileInputs. scores: rows of kPiece. begin: a multiple of kSpan.
template <int TILES>
inline void score_matrix(TileScope* tiles, const uint16_t* q, const Columns& columns, int64_t begin, int64_t end,
                         float* scores) {
  const int64_t head_dim = columns.head_dim, stride = columns.key_stride, score_stride = kPiece * sizeof(float);
  for (int64_t token = begin; token < end; token += 2 * kLanes) {
    const uint8_t* const* keys = columns.keys + token / kLanes;
    tiles->zero<0>();
    tiles->zero<1>();
    if (TILES == 2) tiles->zero<2>(), tiles->zero<3>();
    for (int64_t d = 0; d < head_dim; d += kTileInputs) {
      tiles->load<4>(q + d, 2 * head_dim);
      tiles->load<6>(keys[0] + d / 2 * stride, stride);
      tiles->load<7>(keys[1] + d / 2 * stride, stride);
      tiles->multiply_bf16<0, 4, 6>();
      tiles->multiply_bf16<1, 4, 7>();
      if (TILES == 1) continue;
      tiles->load<5>(q + kTileHeight * head_dim + d, 2 * head_dim);
      tiles->multiply_bf16<2, 5, 6>();
      tiles->multiply_bf16<3, 5, 7>();
    }
    float* to = scores + token;
    tiles->store<0>(to, score_stride);
    tiles->store<1>(to + kLanes, score_stride);
    if (TILES == 1) continue;
    tiles->store<2>(to + kTileHeight * kPiece, score_stride);
    tiles->store<3>(to + kTileHeight * kPiece + kLanes, score_stride);
  }
}

// mixed[r] = sum over tokens begin .. end - 1 of the piece, of weights[r] * values, for TILES * 16 rows.
//
// weights: bfloat16 rows of kPiece, zeros from `end` to the end of its span. begin: a multiple of kSpan. mixed: rows of
// head_dim, a multiple of kTileInputs.
template <int TILES>
inline void mix_matrix(TileScope* tiles, const uint16_t* weights, const ValueSpans& values, int64_t begin, int64_t end,
                       int64_t head_dim, float* mixed) {
  const int64_t weight_stride = kPiece * sizeof(uint16_t), stride = head_dim * 4;
  for (int64_t d = 0; d < head_dim; d += 2 * kLanes) {
    tiles->zero<0>();
    tiles->zero<1>();
    if (TILES == 2) tiles->zero<2>(), tiles->zero<3>();
    for (int64_t token = begin; token < end; token += kSpan) {
      const uint8_t* from = values.at[token / kSpan] + d * 4;
      tiles->load<4>(weights + token, weight_stride);
      tiles->load<6>(from, stride);
      tiles->load<7>(from + kLanes * 4, stride);
      tiles->multiply_bf16<0, 4, 6>();
      tiles->multiply_bf16<1, 4, 7>();
      if (TILES == 1) continue;
      tiles->load<5>(weights + kTileHeight * kPiece + token, weight_stride);
      tiles->multiply_bf16<2, 5, 6>();
      tiles->multiply_bf16<3, 5, 7>();
    }
    float* to = mixed + d;
    tiles->store<0>(to, stride);
    tiles->store<1>(to + kLanes, stride);
    if (TILES == 1) continue;
    tiles->store<2>(to + kTileHeight * head_dim, stride);
    tiles->store<3>(to + kTileHeight * head_dim + kLanes, stride);
  }
}

}  // namespace inflight
