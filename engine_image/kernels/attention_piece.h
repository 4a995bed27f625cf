// A unit's rows over one piece of context: scores, softmax, values, and what that adds to the pieces before.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_matrix.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "attention_unit.h"
#include "tiles.h"

namespace inflight {

template <class Element, int ROWS>
void score_rows(const float* queries, const Columns& columns, int64_t begin, int64_t end, float* scores) {
  int64_t column = begin / kLanes;
  const int64_t end_column = (end + kLanes - 1) / kLanes;
  for (; column + kTileVectors <= end_column; column += kTileVectors)
    score_tile<Element, ROWS, kTileVectors>(queries, columns, column, scores);
  for (; column < end_column; column++) score_tile<Element, ROWS, 1>(queries, columns, column, scores);
}

template <class Element, int ROWS>
void value_rows(const float* weights, const Columns& columns, int64_t begin, int64_t end, KeyFetcher* next_keys,
                float* mixed) {
  int64_t d = 0;
  for (; d + kTileVectors * kLanes <= columns.head_dim; d += kTileVectors * kLanes)
    value_tile<Element, ROWS, kTileVectors>(weights, columns, begin, end, d, next_keys, mixed);
  for (; d < columns.head_dim; d += kLanes)
    value_tile<Element, ROWS, 1>(weights, columns, begin, end, d, next_keys, mixed);
}

// The tokens of a piece, relative to it, that rows first .. first + count - 1 see; empty: none. Contexts grow with the
// rows: the first row's begins first, the last row's ends last. `begin` is a multiple of kSpan.
inline Range tokens_seen(const Job& job, int64_t piece, int64_t first, int64_t count) {
  const int64_t base = piece * kPiece;
  return {std::max(job.context(first).lo - base, int64_t(0)) / kSpan * kSpan,
          std::min(job.context(first + count - 1).hi - base, kPiece)};
}

// Results of some rows over a piece: the greatest score, the sum of weights, and whether the row sees any of the piece.
template <int ROWS>
struct Weighed {
  float top[ROWS], total[ROWS];
  bool sees[ROWS];
};

// The scores of `tokens`, rows of kPiece, become weights; zeros to the end of the last span.
template <int ROWS>
Weighed<ROWS> weigh(const Job& job, int64_t piece, int64_t first, int count, Range tokens, float* scores) {
  const int64_t base = piece * kPiece, end = whole(tokens.end, kSpan);
  Weighed<ROWS> weighed;
  for (int r = 0; r < count; r++, scores += kPiece) {
    const Context context = job.context(first + r), here{context.lo - base, context.hi - base};
    weighed.sees[r] = here.lo < kPiece && here.hi > 0;
    if (weighed.sees[r])
      softmax(scores, tokens.begin, end, here, job.cache.softcap, &weighed.top[r], &weighed.total[r]);
    else
      std::fill(scores + tokens.begin, scores + end, 0.0f);
  }
  return weighed;
}

// Add the piece to what the rows have of those before.
template <int ROWS>
void add_piece(const Job& job, const Scratch& scratch, int64_t piece, int64_t first, int count,
               const Weighed<ROWS>& weighed) {
  const int64_t head_dim = job.cache.head_dim;
  for (int r = 0; r < count; r++) {
    if (!weighed.sees[r]) continue;
    const int64_t i = first + r;
    const Row row{scratch.mixed + i * head_dim, scratch.top + i, scratch.total + i};
    const float* mixed = scratch.piece_mixed + r * head_dim;
    if (piece == job.unit.first_piece || piece == first_piece(job.context(i)))
      start(row, mixed, weighed.top[r], weighed.total[r], head_dim);
    else
      fold(row, mixed, weighed.top[r], weighed.total[r], head_dim);
  }
}

// Rows first .. first + ROWS - 1 over one piece.
template <class Element, int ROWS>
void attend_rows(const Job& job, const Scratch& scratch, int64_t piece, int64_t first, const Columns& columns,
                 KeyFetcher next_keys) {
  const Range tokens = tokens_seen(job, piece, first, ROWS);
  if (tokens.begin >= tokens.end) return;
  const int64_t head_dim = job.cache.head_dim;
  score_rows<Element, ROWS>(scratch.queries + first * head_dim, columns, tokens.begin, tokens.end, scratch.weights);
  const auto weighed = weigh<ROWS>(job, piece, first, ROWS, tokens, scratch.weights);
  if (Element::kRounds)
    for (int r = 0; r < ROWS; r++)
      for (int64_t i = tokens.begin; i < tokens.end; i += kLanes) round_bf16(scratch.weights + r * kPiece + i);
  value_rows<Element, ROWS>(scratch.weights, columns, tokens.begin, tokens.end, &next_keys, scratch.piece_mixed);
  add_piece(job, scratch, piece, first, ROWS, weighed);
}

// Rows first .. first + count - 1 over one piece, HEIGHT * 16 at most.
template <int HEIGHT>
void attend_tiles(const Job& job, const Scratch& scratch, TileScope* tiles, int64_t piece, int64_t first, int count,
                  const Columns& columns, const ValueSpans& values) {
  const Range tokens = tokens_seen(job, piece, first, count);
  if (tokens.begin >= tokens.end) return;
  const int64_t head_dim = job.cache.head_dim;
  score_matrix<HEIGHT>(*tiles, scratch.rounded_queries + first * head_dim, columns, tokens.begin, tokens.end,
                      scratch.weights);
  const auto weighed = weigh<kSquareRows>(job, piece, first, count, tokens, scratch.weights);
  for (int r = 0; r < count; r++)
    for (int64_t i = tokens.begin; i < whole(tokens.end, kSpan); i += kLanes)
      store_bf16(scratch.rounded_weights + r * kPiece + i, load<f32v>(scratch.weights + r * kPiece + i));
  mix_matrix<HEIGHT>(*tiles, scratch.rounded_weights, values, tokens.begin, tokens.end, head_dim, scratch.piece_mixed);
  add_piece(job, scratch, piece, first, count, weighed);
}

template <class Element, int ROWS = 1>
void attend_rows(const Job& job, const Scratch& scratch, int64_t piece, int64_t first, int64_t count,
                 const Columns& columns, const KeyFetcher& next) {
  if constexpr (ROWS <= Element::kMostRows) {
    if (count > ROWS) return attend_rows<Element, ROWS + 1>(job, scratch, piece, first, count, columns, next);
    attend_rows<Element, ROWS>(job, scratch, piece, first, columns, next);
  }
}

template <class Element>
void attend_piece(const Job& job, const Scratch& scratch, int64_t piece, const Columns& columns,
                  const KeyFetcher& next) {
  const int64_t num_rows = job.num_rows(), num_tiles = (num_rows + Element::kMostRows - 1) / Element::kMostRows;
  for (int64_t tile = 0; tile < num_tiles; tile++) {
    const int64_t first = num_rows * tile / num_tiles, count = num_rows * (tile + 1) / num_tiles - first;
    attend_rows<Element>(job, scratch, piece, first, count, columns, next);
  }
}

inline void attend_piece_by_tiles(const Job& job, const Scratch& scratch, TileScope* tiles, int64_t piece,
                                  const Columns& columns) {
  const int64_t num_rows = job.num_rows();
  const Range seen = tokens_seen(job, piece, 0, num_rows);
  const ValueSpans values = find_value_spans(columns, seen.begin, seen.end, scratch.values);
  for (int64_t first = 0; first < num_rows; first += kSquareRows) {
    const int count = int(std::min<int64_t>(kSquareRows, num_rows - first));
    if (count > kTileHeight)
      attend_tiles<2>(job, scratch, tiles, piece, first, count, columns, values);
    else
      attend_tiles<1>(job, scratch, tiles, piece, first, count, columns, values);
  }
}

}  // namespace inflight
