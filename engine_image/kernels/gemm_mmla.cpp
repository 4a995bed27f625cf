// Products of bfloat16, int8 and int4 in squares of two outputs by two rows, see `mmla.h`. A sum is that of one output
// and one row alone, in ascending order of the inputs; the partner of a row without one is the row itself.
#include "gemm_vector_tile.h"
#include "mmla.h"

namespace inflight {

#if defined(INFLIGHT_MMLA)
namespace {

constexpr int kSquares = kPanel / 2;  // a panel's, beside each other

template <int R>
constexpr int kPairs = (R + 1) / 2;

template <int R>
constexpr int second_of(int pair) { return 2 * pair + 1 < R ? 2 * pair + 1 : 2 * pair; }

// Brings ahead what replaces one step's weights.
INFLIGHT_INLINE void go(Ahead* ahead) {
  for (int i = 0; i < kSquares; i += 2) ahead->go();
}

// Add to the sums what a panel's weights give with the rows' inputs from `input` on.
template <int R, class V, class T>
INFLIGHT_INLINE void accumulate(V (&sum)[kPairs<R>][kSquares], const u32v (&weights)[kSquares],
                                const RowPointers<T, R>& x, int input) {
#pragma GCC unroll 8
  for (int p = 0; p < kPairs<R>; p++) {
    const u32v inputs = join_rows(x.row(2 * p) + input, x.row(second_of<R>(p)) + input);
#pragma GCC unroll 4
    for (int s = 0; s < kSquares; s++) sum[p][s] = multiply_square(sum[p][s], weights[s], inputs);
  }
}

template <int R>
void tile_bfloat16(const Tile& t) {
  RowPointers<uint16_t, R> x(t.x->rounded_row<uint16_t>(t.row) + t.begin, t.x->stride);
  const uint8_t* w = t.weights;
  Ahead ahead = t.ahead;
  f32v sum[kPairs<R>][kSquares];
#pragma GCC unroll 8
  for (int p = 0; p < kPairs<R>; p++)
#pragma GCC unroll 2
    for (int s = 0; s < kSquares; s += 2) {
      const f32v first = t.first ? f32v{} : load<f32v>(t.sums + 2 * p * kPanel + 2 * s);
      const f32v second = t.first ? f32v{} : load<f32v>(t.sums + second_of<R>(p) * kPanel + 2 * s);
      sum[p][s] = left_square(first, second);
      sum[p][s + 1] = right_square(first, second);
    }
  for (int64_t i = t.begin; i < t.end; i += kBf16Run, x.advance(kBf16Run), w += kRun * kPanel) {
    go(&ahead);
    u32v weights[kSquares];
    for (int s = 0; s < kSquares; s++) weights[s] = load<u32v>(w + 16 * s);
    accumulate(sum, weights, x, 0);
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPairs<R>; p++)
#pragma GCC unroll 2
    for (int s = 0; s < kSquares; s += 2) {
      store(t.sums + second_of<R>(p) * kPanel + 2 * s, second_row(sum[p][s], sum[p][s + 1]));
      store(t.sums + 2 * p * kPanel + 2 * s, first_row(sum[p][s], sum[p][s + 1]));
    }
}

template <int R>
INFLIGHT_INLINE void int8_dots(i32v (&dots)[kPairs<R>][kSquares], RowPointers<int8_t, R>* x, const uint8_t** w,
                               Ahead* ahead) {
  for (int i = 0; i < kInt8Group; i += kRun, x->advance(kRun), *w += kRun * kPanel) {
    go(ahead);
    u32v weights[kSquares];
    for (int s = 0; s < kSquares; s++) weights[s] = load<u32v>(*w + 16 * s);
    accumulate(dots, weights, *x, 0);
  }
}

template <int R>
INFLIGHT_INLINE void int4_dots(i32v (&dots)[kPairs<R>][kSquares], RowPointers<int8_t, R>* x, const uint8_t** w,
                               Ahead* ahead) {
  for (int i = 0; i < kInt4Group; i += 2 * kRun, x->advance(2 * kRun), *w += kRun * kPanel) {
    go(ahead);
    u32v lower[kSquares], upper[kSquares];
    for (int s = 0; s < kSquares; s++) {
      const u32v both = load<u32v>(*w + 16 * s);
      lower[s] = both & 0x0f0f0f0fu;
      upper[s] = (both >> 4) & 0x0f0f0f0fu;
    }
    accumulate(dots, lower, *x, 0);
    accumulate(dots, upper, *x, kRun);
  }
}

// Loads the data behind a group's weights: the scales of four outputs and, for int4, their minima.
template <Format FORMAT>
INFLIGHT_INLINE void load_scales(const uint8_t* at, f32v* scales, f32v* minima) {
  if constexpr (FORMAT == Format::int8) {
    *scales = load<f32v>(at);
  } else {
    widen_half_pairs(load<u32v>(at), scales, minima);
  }
}

// Add one row's exact sums of a group, of four outputs, times the scales: the bits of gemm_vectors.cpp.
template <Format FORMAT>
INFLIGHT_INLINE void fold(i32v dots, f32v scales, f32v minima, float scale, uint32_t offset, float* sums) {
  if constexpr (FORMAT == Format::int8) {
    store(sums, fma(to_float(dots + int32_t(offset)) * scales, splat(scale), load<f32v>(sums)));
  } else {
    const f32v sum = fma(to_float(dots) * scales, splat(scale), load<f32v>(sums));
    store(sums, fma(minima, (f32v)splat(offset), sum));
  }
}

template <Format FORMAT, int R>
void tile_integers(const Tile& t) {
  constexpr int group = FORMAT == Format::int8 ? kInt8Group : kInt4Group;
  const int64_t groups = (t.end + group - 1) / group;
  RowPointers<int8_t, R> x(t.x->rounded_row<int8_t>(t.row), t.x->stride);
  const float* scales = t.x->scales + t.row;
  const uint32_t* offsets = t.x->offsets + t.row;
  const uint8_t* w = t.weights;
  Ahead ahead = t.ahead;
  for (int i = 0; i < R * kPanel; i += kLanes) store(t.sums + i, f32v{});
  for (int64_t g = 0; g < groups; g++, scales += t.x->rows, offsets += t.x->rows, w += 4 * kPanel) {
    i32v dots[kPairs<R>][kSquares] = {};
    if constexpr (FORMAT == Format::int8) {
      int8_dots<R>(dots, &x, &w, &ahead);
    } else {
      int4_dots<R>(dots, &x, &w, &ahead);
    }
#pragma GCC unroll 2
    for (int s = 0; s < kSquares; s += 2) {
      f32v weight_scales, minima = {};
      load_scales<FORMAT>(w + 8 * s, &weight_scales, &minima);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const i32v left = dots[r / 2][s], right = dots[r / 2][s + 1];
        const i32v row = r % 2 == 0 ? first_row(left, right) : second_row(left, right);
        fold<FORMAT>(row, weight_scales, minima, scales[r], offsets[r], t.sums + r * kPanel + 2 * s);
      }
    }
  }
}

template <int R = 1>
TileFunction function_of(Format format, int rows) {
  if constexpr (R <= kVectorTileRows) {
    if (rows > R) return function_of<R + 1>(format, rows);
    if (format == Format::bfloat16) return tile_bfloat16<R>;
    if (format == Format::int8) return tile_integers<Format::int8, R>;
    if (format == Format::int4) return tile_integers<Format::int4, R>;
  }
  return nullptr;
}

}  // namespace

TileFunction mmla_function(Format format, int rows) { return function_of(format, rows); }
#else
TileFunction mmla_function(Format, int) { return nullptr; }
#endif

}  // namespace inflight
