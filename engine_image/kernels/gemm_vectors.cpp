// Products in vector registers, for every format and any number of rows.
#include "gemm_finish.h"
#include "gemm_vector_tile.h"
#include "mmla.h"

namespace inflight {

namespace {

// Inputs at a time; so many of a panel stay in the first or second cache.
constexpr int64_t kBlockInputs = 768;

// Add to the sums what one input's two registers of weights give.
template <int R>
INFLIGHT_INLINE void accumulate(f32v (&sum)[R][2], const RowPointers<float, R>& x, int input, f32v w0, f32v w1) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const f32v v = splat(x.row(r)[input]);
    sum[r][0] = fma(v, w0, sum[r][0]);
    sum[r][1] = fma(v, w1, sum[r][1]);
  }
}

template <int R>
INFLIGHT_INLINE void load_sums(f32v (&sum)[R][2], const Tile& t) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) sum[r][c] = t.first ? f32v{} : load<f32v>(t.sums + r * kPanel + c * kLanes);
}

template <int R>
INFLIGHT_INLINE void store_sums(const f32v (&sum)[R][2], const Tile& t) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) store(t.sums + r * kPanel + c * kLanes, sum[r][c]);
}

template <int R>
void tile_float32(const Tile& t) {
  RowPointers<float, R> x(t.x->values + t.row * t.x->stride + t.begin, t.x->stride);
  const float* w = reinterpret_cast<const float*>(t.weights);
  Ahead ahead = t.ahead;
  f32v sum[R][2];
  load_sums(sum, t);
  int64_t i = t.begin;
  for (; i + 4 <= t.end; i += 4, x.advance(4), w += 4 * kPanel)
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) {
      ahead.go();
      accumulate(sum, x, u, load<f32v>(w + u * kPanel), load<f32v>(w + u * kPanel + kLanes));
    }
  for (; i < t.end; i++, x.advance(1), w += kPanel) accumulate(sum, x, 0, load<f32v>(w), load<f32v>(w + kLanes));
  store_sums(sum, t);
}

template <int R>
void tile_bfloat16(const Tile& t) {
  RowPointers<float, R> x(t.x->values + t.row * t.x->stride + t.begin, t.x->stride);
  const uint32_t* w = reinterpret_cast<const uint32_t*>(t.weights);
  Ahead ahead = t.ahead;
  f32v sum[R][2];
  load_sums(sum, t);
  for (int64_t i = t.begin; i < t.end; i += 2, x.advance(2), w += kPanel) {
    ahead.go();
    accumulate(sum, x, 0, widen_first(load<u32v>(w)), widen_first(load<u32v>(w + kLanes)));
    asm volatile("" : "+r"(w));  // read again rather than kept: there are no registers left
    accumulate(sum, x, 1, widen_second(load<u32v>(w)), widen_second(load<u32v>(w + kLanes)));
  }
  store_sums(sum, t);
}

// The same product for activations in bfloat16: two inputs at once.
template <int R>
void tile_bfloat16_pairs(const Tile& t) {
  RowPointers<uint16_t, R> x(t.x->rounded_row<uint16_t>(t.row) + t.begin, t.x->stride);
  const uint32_t* w = reinterpret_cast<const uint32_t*>(t.weights);
  Ahead ahead = t.ahead;
  f32v sum[R][2];
  load_sums(sum, t);
  for (int64_t i = t.begin; i < t.end; i += 2, x.advance(2), w += kPanel) {
    ahead.go();
    const u32v w0 = load<u32v>(w), w1 = load<u32v>(w + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const u32v v = splat(load<uint32_t>(x.row(r)));
      sum[r][0] = dot_bf16(sum[r][0], v, w0);
      sum[r][1] = dot_bf16(sum[r][1], v, w1);
    }
  }
  store_sums(sum, t);
}

// The same product in the order of tiles, 32 inputs at a time.
template <int R>
void tile_two_chains(const Tile& t) {
  RowPointers<uint16_t, R> x(t.x->rounded_row<uint16_t>(t.row) + t.begin, t.x->stride);
  const uint32_t* w = reinterpret_cast<const uint32_t*>(t.weights);
  Ahead ahead = t.ahead;
  f32v sum[R][2];
  load_sums(sum, t);
  for (int64_t i = t.begin; i < t.end; i += kTileInputs) {
    TwoChains chains[R][2];
    for (int pair = 0; pair < kTileInputs / 2; pair++, x.advance(2), w += kPanel) {
      ahead.go();
      const u32v w0 = load<u32v>(w), w1 = load<u32v>(w + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const u32v v = splat(load<uint32_t>(x.row(r)));
        chains[r][0].add(widen_first(v), widen_second(v), widen_first(w0), widen_second(w0));
        chains[r][1].add(widen_first(v), widen_second(v), widen_first(w1), widen_second(w1));
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
      for (int c = 0; c < 2; c++) sum[r][c] = chains[r][c].onto(sum[r][c]);
  }
  store_sums(sum, t);
}

// Integers are summed within a group, exactly; groups are summed in float32. The float sums stay in memory, so that the
// integers have the registers.
template <int R>
void tile_int8(const Tile& t) {
  const int64_t groups = (t.end + kInt8Group - 1) / kInt8Group;
  RowPointers<int8_t, R> x(t.x->rounded_row<int8_t>(t.row), t.x->stride);
  const float* scales = t.x->scales + t.row;
  const uint32_t* offsets = t.x->offsets + t.row;
  const uint8_t* w = t.weights;
  Ahead ahead = t.ahead;
  float* sums = t.sums;
  for (int i = 0; i < R * kPanel; i += kLanes) store(sums + i, f32v{});
  for (int64_t g = 0; g < groups; g++, scales += t.x->rows, offsets += t.x->rows) {
    i32v dot[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = splat(int32_t(offsets[r]));
    for (int i = 0; i < kInt8Group; i += 16, x.advance(16)) {
#pragma GCC unroll 4
      for (int u = 0; u < 16; u += 4, w += 4 * kPanel) {
        ahead.go();
        const u8v w0 = load<u8v>(w), w1 = load<u8v>(w + 4 * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const u8v v = (u8v)splat(load<int32_t>(x.row(r) + u));
          dot[r][0] = dot_i8(dot[r][0], w0, v);
          dot[r][1] = dot_i8(dot[r][1], w1, v);
        }
      }
    }
    const f32v s0 = load<f32v>(w), s1 = load<f32v>(w + 4 * kLanes);
    w += 4 * kPanel;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const f32v s = splat(scales[r]);
      float* sum = sums + r * kPanel;
      store(sum, fma(to_float(dot[r][0]) * s0, s, load<f32v>(sum)));
      store(sum + kLanes, fma(to_float(dot[r][1]) * s1, s, load<f32v>(sum + kLanes)));
    }
  }
}

template <int R>
void tile_int4(const Tile& t) {
  const int64_t groups = (t.end + kInt4Group - 1) / kInt4Group;
  RowPointers<int8_t, R> x(t.x->rounded_row<int8_t>(t.row), t.x->stride);
  const float* scales = t.x->scales + t.row;
  const uint32_t* offsets = t.x->offsets + t.row;
  const uint8_t* w = t.weights;
  Ahead ahead = t.ahead;
  float* sums = t.sums;
  const u8v low = (u8v)splat(0x0f0f0f0fu);
  for (int i = 0; i < R * kPanel; i += kLanes) store(sums + i, f32v{});
  for (int64_t g = 0; g < groups; g++, scales += t.x->rows, offsets += t.x->rows) {
    i32v dot[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = i32v{};
#pragma GCC unroll 4
    for (int i = 0; i < kInt4Group; i += 8, w += 4 * kPanel) {
      ahead.go();
      const u8v b0 = load<u8v>(w), b1 = load<u8v>(w + 4 * kLanes);
      const u8v w0 = b0 & low, w1 = b1 & low, v0 = (u8v)((u32v)b0 >> 4) & low, v1 = (u8v)((u32v)b1 >> 4) & low;
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const u8v v = (u8v)splat(load<int32_t>(x.row(r) + i));
        dot[r][0] = dot_i8(dot[r][0], w0, v);
        dot[r][1] = dot_i8(dot[r][1], w1, v);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const u8v v = (u8v)splat(load<int32_t>(x.row(r) + i + 4));
        dot[r][0] = dot_i8(dot[r][0], v0, v);
        dot[r][1] = dot_i8(dot[r][1], v1, v);
      }
    }
    x.advance(kInt4Group);
    f32v s0, s1, m0, m1;
    widen_half_pairs(load<u32v>(w), &s0, &m0);
    widen_half_pairs(load<u32v>(w + 4 * kLanes), &s1, &m1);
    w += 4 * kPanel;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const f32v s = splat(scales[r]);
      const f32v o = (f32v)splat(offsets[r]);
      float* sum = sums + r * kPanel;
      store(sum, fma(m0, o, fma(to_float(dot[r][0]) * s0, s, load<f32v>(sum))));
      store(sum + kLanes, fma(m1, o, fma(to_float(dot[r][1]) * s1, s, load<f32v>(sum + kLanes))));
    }
  }
}

template <int R>
constexpr TileFunction bfloat16_function() {
  if constexpr (!kTiles) return kHasDotBf16 ? tile_bfloat16_pairs<R> : tile_bfloat16<R>;
  if constexpr (kTiles && R <= kVectorRows) return tile_two_chains<R>;
  return nullptr;
}

// Returns the function for a number of rows.
template <int R = 1>
TileFunction tile_function(Format format, int rows) {
  if constexpr (R <= kVectorTileRows) {
    if (rows > R) return tile_function<R + 1>(format, rows);
    if constexpr (kMmla) return format == Format::float32 ? tile_float32<R> : mmla_function(format, rows);
    switch (format) {
      case Format::float32:
        return tile_float32<R>;
      case Format::bfloat16:
        return bfloat16_function<R>();
      case Format::int8:
        return tile_int8<R>;
      case Format::int4:
        return tile_int4<R>;
    }
  }
  return nullptr;
}

}  // namespace

void multiply_by_vectors(const ProductPart& part) {
  const auto& [m, x, out, row, rows, begin, end] = part;
  alignas(kCacheLine) float sums[kVectorBlockRows * kPanel];
  const int tiles = (rows + kVectorTileRows - 1) / kVectorTileRows;
  const int64_t inputs = m.quantized() ? m.inputs : m.padded_inputs();
  const int64_t block = m.quantized() ? inputs : kBlockInputs;
  const int64_t input_bytes = m.quantized() ? 0 : m.panel_bytes() / inputs;
  constexpr int64_t step_bytes = 2 * sizeof(f32v);  // a tile's step in any format: two registers of weights
  const int64_t step = (step_bytes + tiles - 1) / tiles;

  for (int64_t panel = begin; panel < end; panel++) {
    for (int64_t from = 0; from < inputs; from += block) {
      const int64_t to = from + block < inputs ? from + block : inputs;
      const int64_t share_bytes = m.panel_bytes() * (to - from) / inputs / step_bytes * step;
      const uint8_t* weights = m.panel(panel) + from * input_bytes;
      const uint8_t* next = panel + 1 < end ? weights + m.panel_bytes() : weights;
      for (int tile = 0; tile < tiles; tile++) {
        const int first = rows * tile / tiles, count = rows * (tile + 1) / tiles - first;
        const Ahead ahead{next + share_bytes * tile, step};
        prefetch_output(out, row + first, count, panel);
        tile_function(m.format, count)({&x, row + first, weights, from, to, ahead, sums + first * kPanel, from == 0});
      }
    }
    finish(out, sums, row, rows, panel);
  }
}

}  // namespace inflight
