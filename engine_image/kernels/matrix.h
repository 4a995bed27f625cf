// A weight matrix [outputs, inputs], packed once into the order in which the products read it.
#pragma once

#include <cstdint>

#include "mmla.h"
#include "simd.h"
#include "tiles.h"

namespace inflight {

#if defined(__AVX512BF16__)
constexpr bool kHasDotBf16 = true;
#else
constexpr bool kHasDotBf16 = false;
#endif

// Lane by lane c + a.first * b.first + a.second * b.second; only where kHasDotBf16. It flushes denormals and rounds in
// its own way.
INFLIGHT_INLINE f32v dot_bf16(f32v c, u32v a, u32v b) {
#if defined(__AVX512BF16__)
  return (f32v)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
  return fma(widen_second(a), widen_second(b), fma(widen_first(a), widen_first(b), c));
#endif
}

enum class Format : int32_t { float32 = 0, bfloat16 = 1, int8 = 2, int4 = 3 };

// A panel is this many outputs side by side: two registers.
constexpr int kPanel = 2 * kLanes;
constexpr int kInt8Group = 64;
constexpr int kInt4Group = 32;
// Bytes of one output's weights that lie side by side: as many as an instruction multiplies for it.
constexpr int kRun = kMmla ? 8 : 4;
constexpr int kBf16Run = kRun / 2;
// Inputs of bfloat16 are filled up to a multiple of this.
constexpr int kBf16Unit = kTiles ? kTileInputs : kBf16Run;

// Panels follow each other. Within one, by format:
//   float32   [inputs][kPanel]
//   bfloat16  [padded_inputs / kBf16Run][kPanel][kBf16Run], inputs even
//   int8      groups of 64 inputs: [64 / kRun][kPanel][kRun] bytes w + 128, then [kPanel] float32 scales
//   int4      groups of 32 inputs: [16 / kRun][kPanel][kRun] bytes, of which the lower halves are inputs 2 kRun i ..
//             2 kRun i + kRun - 1 and the upper ones the kRun after those; then [kPanel][2] float16: scale and minimum,
//             w = scale * q + minimum
// Missing outputs are zero; so are missing inputs and their activations.
struct Matrix {
  Format format;
  int32_t reserved;
  int64_t outputs;
  int64_t inputs;
  uint8_t* data;

  int64_t num_panels() const { return (outputs + kPanel - 1) / kPanel; }
  int64_t panel_bytes() const;
  const uint8_t* panel(int64_t i) const { return data + i * panel_bytes(); }
  int group() const { return format == Format::int8 ? kInt8Group : kInt4Group; }
  bool quantized() const { return format == Format::int8 || format == Format::int4; }
  // Products take activations in fewer bits than float32, see `round_row`.
  bool rounds() const { return quantized() || ((kTiles || kHasDotBf16 || kMmla) && format == Format::bfloat16); }
  // Number of inputs with the padding of the last group or the last product.
  int64_t padded_inputs() const {
    if (quantized()) return num_groups() * group();
    return format == Format::bfloat16 ? (inputs + kBf16Unit - 1) / kBf16Unit * kBf16Unit : inputs;
  }
  int64_t rounded_bytes() const { return quantized() ? 1 : 2; }
  int64_t num_groups() const { return quantized() ? (inputs + group() - 1) / group() : 0; }
  // Reads an output's weights in float32 [inputs]: a row of an embedding.
  void read_row(int64_t output, float* row) const;
};

// The two halves of a u32 of float16: see `int4` above.
INFLIGHT_INLINE void widen_half_pairs(u32v pairs, f32v* first, f32v* second) {
#if defined(__AVX512F__)
  *first = (f32v)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)pairs));
  *second = (f32v)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)(pairs >> 16)));
#else
  // Exponents move from bias 15 to 127 by a product, which is exact for denormals too; there are no infinities here.
  const f32v rebias = splat(5.192296858534828e33f);  // 2^112
  const u32v low = pairs & 0xffffu, high = pairs >> 16;
  *first = (f32v)((low & 0x7fffu) << 13) * rebias;
  *second = (f32v)((high & 0x7fffu) << 13) * rebias;
  *first = (f32v)((u32v)*first | (low & 0x8000u) << 16);
  *second = (f32v)((u32v)*second | (high & 0x8000u) << 16);
#endif
}

}  // namespace inflight

// Zeroed memory in huge pages, as products read weights from end to end; null where there is none.
INFLIGHT_EXPORT void* inflight_allocate(int64_t bytes);
INFLIGHT_EXPORT void inflight_release(void* memory, int64_t bytes);
