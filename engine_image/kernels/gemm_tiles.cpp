// Products in matrix tiles: squares of 32 rows by a panel, whose weights are tiles as they lie.
//
// Tiles are loaded whole: rows past the last are read, and their sums dropped.
#include "gemm_finish.h"
#include "tile_square.h"

namespace inflight {

namespace {

static_assert(!kTiles || kPanel == 2 * kTileHeight, "a panel is two tiles wide");

constexpr int64_t kPanelStride = 4 * kPanel;               // bytes from a tile's row of weights to the next
constexpr int64_t kStepBytes = kTileHeight * kPanelStride;  // of weights in one step: two tiles
constexpr int64_t kSumStride = 4 * kPanel;
// Inputs in bfloat16 at a time: those of kTileBlockRows stay in the second cache.
constexpr int64_t kMostInputs = 1536;
// Panels whose sums are kept until the next inputs come.
constexpr int64_t kSumPanels = 6;

// The panel after this one, which is brought into the second cache on the way: a share of it with each step.
struct Ahead {
  const uint8_t* at;
  int64_t step;

  INFLIGHT_INLINE void go() {
    for (int64_t i = 0; i < step; i += kCacheLine) prefetch_far(at + i);
    at += step;
  }
};

// Bytes to fetch in each of `steps` by each of the squares that `rows` fill, whole lines.
int64_t fetch_step(int64_t bytes, int64_t steps, int rows) {
  const int64_t fetches = steps * ((rows + kSquareRows - 1) / kSquareRows);
  return (bytes + fetches * kCacheLine - 1) / (fetches * kCacheLine) * kCacheLine;
}

// Multiplies a panel by 32 or 16 rows, and inputs of which `steps` are left; sums start from zero if `first`.
template <int HEIGHT>
void bfloat16_sums(TileScope& tiles, const uint8_t* x, int64_t stride, const uint8_t* weights, int64_t steps,
                   Ahead ahead, float* sums, bool first) {
  if (first) {
    zero_sums<HEIGHT>(tiles);
  } else {
    load_sums<HEIGHT>(tiles, sums, kSumStride);
  }
  for (; steps > 0; steps--, x += 2 * kTileInputs, weights += kStepBytes) {
    ahead.go();
    load_step<HEIGHT>(tiles, x, stride, weights, weights + 64, kPanelStride);
    multiply_bf16<HEIGHT>(tiles);
  }
  store_sums<HEIGHT>(tiles, sums, kSumStride);
}

// Multiplies by blocks of inputs; the sums of several panels wait in between, the sums of a single block do not.
void multiply_bfloat16_part(TileScope& tiles, const ProductPart& part) {
  const auto& [m, x, out, row, rows, begin, end] = part;
  alignas(kCacheLine) float waiting[kSumPanels][kTileBlockRows * kPanel];
  const int64_t stride = 2 * x.stride, inputs = m.padded_inputs();
  const int64_t blocks = (inputs + kMostInputs - 1) / kMostInputs;

  for (int64_t panels = begin; panels < end; panels += kSumPanels)
    for (int64_t b = 0; b < blocks; b++) {
      const Range block = share(inputs, int(b), int(blocks), kTileInputs);
      const int64_t steps = (block.end - block.begin) / kTileInputs;
      const int64_t fetch = fetch_step(steps * kStepBytes, steps, rows);
      for (int64_t panel = panels; panel < end && panel < panels + kSumPanels; panel++) {
        const uint8_t* weights = m.panel(panel) + block.begin * kPanel * 2;
        Ahead ahead{panel + 1 < end ? weights + m.panel_bytes() : weights, fetch};
        for (int r = 0; r < rows; r += kSquareRows, ahead.at += steps * fetch) {
          const int count = rows - r < kSquareRows ? rows - r : kSquareRows;
          const auto* values = reinterpret_cast<const uint8_t*>(x.rounded_row<uint16_t>(row + r) + block.begin);
          float* sums = blocks == 1 ? waiting[0] : &waiting[panel - panels][r * kPanel];
          if (b + 1 == blocks) prefetch_output(out, row + r, count, panel);
          const auto add = count > kTileHeight ? bfloat16_sums<2> : bfloat16_sums<1>;
          add(tiles, values, stride, weights, steps, ahead, sums, b == 0);
          if (b + 1 == blocks) finish(out, sums, row + r, count, panel);
        }
      }
    }
}

// Exact sums of one group, as tiles give them, times the scales; in the order of `tile_int8` in gemm_vectors.cpp.
INFLIGHT_INLINE void fold(const int32_t* dots, const uint8_t* weight_scales, const float* scales,
                          const uint32_t* offsets, int rows, float* sums) {
  const f32v s0 = load<f32v>(weight_scales), s1 = load<f32v>(weight_scales + 4 * kLanes);
  for (int r = 0; r < rows; r++, dots += kPanel, sums += kPanel) {
    const f32v s = splat(scales[r]);
    const i32v owed = splat(int32_t(offsets[r]));
    store(sums, fma(to_float(load<i32v>(dots) + owed) * s0, s, load<f32v>(sums)));
    store(sums + kLanes, fma(to_float(load<i32v>(dots + kLanes) + owed) * s1, s, load<f32v>(sums + kLanes)));
  }
}

template <int HEIGHT>
void int8_sums(TileScope& tiles, const ProductPart& part, int64_t row, int count, const uint8_t* weights, Ahead ahead,
               float* sums) {
  const Input& x = part.x;
  // A group's integers are folded while the next one's are multiplied.
  alignas(kCacheLine) int32_t dots[2][kSquareRows * kPanel];
  const float* scales = x.scales + row;
  const uint32_t* offsets = x.offsets + row;
  const auto* values = x.rounded_row<uint8_t>(row);
  const int64_t groups = part.m.num_groups();
  const uint8_t* weight_scales = nullptr;
  memset(sums, 0, count * kPanel * sizeof(float));
  for (int64_t g = 0; g <= groups; g++) {
    if (g < groups) {
      zero_sums<HEIGHT>(tiles);
      for (int i = 0; i < kInt8Group; i += kTileBytes, values += kTileBytes, weights += kStepBytes) {
        ahead.go();
        load_step<HEIGHT>(tiles, values, x.stride, weights, weights + 64, kPanelStride);
        multiply_int8<HEIGHT>(tiles);
      }
      store_sums<HEIGHT>(tiles, dots[g % 2], kSumStride);
    }
    if (g > 0) {
      fold(dots[(g - 1) % 2], weight_scales, scales, offsets, count, sums);
      scales += x.rows;
      offsets += x.rows;
    }
    weight_scales = weights;
    weights += kPanelStride;
  }
}

void multiply_int8_part(TileScope& tiles, const ProductPart& part) {
  const auto& [m, x, out, row, rows, begin, end] = part;
  alignas(kCacheLine) float sums[kSquareRows * kPanel];
  const int64_t steps = m.padded_inputs() / kTileBytes, fetch = fetch_step(m.panel_bytes(), steps, rows);
  for (int64_t panel = begin; panel < end; panel++) {
    const uint8_t* weights = m.panel(panel);
    Ahead ahead{panel + 1 < end ? weights + m.panel_bytes() : weights, fetch};
    for (int r = 0; r < rows; r += kSquareRows, ahead.at += steps * fetch) {
      const int count = rows - r < kSquareRows ? rows - r : kSquareRows;
      prefetch_output(out, row + r, count, panel);
      const auto add = count > kTileHeight ? int8_sums<2> : int8_sums<1>;
      add(tiles, part, row + r, count, weights, ahead, sums);
      finish(out, sums, row + r, count, panel);
    }
  }
}

}  // namespace

void multiply_by_tiles(const ProductPart& part) {
  TileScope tiles;
  if (part.m.format == Format::int8) {
    multiply_int8_part(tiles, part);
  } else {
    multiply_bfloat16_part(tiles, part);
  }
}

}  // namespace inflight
