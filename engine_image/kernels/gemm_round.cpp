#include <cmath>

#include "gemm.h"
#include "gemm_finish.h"

namespace inflight {

namespace {

void quantize_row(const Matrix& m, const float* values, int8_t* quantized, float* scales, uint32_t* offsets,
                  int64_t rows, Range inputs) {
  typedef int8_t i8v __attribute__((vector_size(kLanes)));
  const int group = m.group();
  for (int64_t from = inputs.begin; from < inputs.end; from += group) {
    const int64_t g = from / group;
    const float* x = values + from;
    alignas(kCacheLine) float padded_group[kInt8Group] = {};
    if (m.inputs - from < group) {
      memcpy(padded_group, x, 4 * (m.inputs - from));
      x = padded_group;
    }
    f32v magnitudes = {};
    for (int i = 0; i < group; i += kLanes)
      magnitudes = max(magnitudes, (f32v)((u32v)load<f32v>(x + i) & 0x7fffffffu));
    const float largest = reduce_max(magnitudes);
    const float scale = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
    i32v sums = {};
    for (int i = 0; i < group; i += kLanes) {
      const i32v q = round_to_int(load<f32v>(x + i) * inverse);
      store(quantized + from + i, __builtin_convertvector(q, i8v));
      sums += q;
    }
    int32_t sum = 0;
    for (int i = 0; i < kLanes; i++) sum += sums[i];
    scales[g * rows] = scale;
    const int32_t owed = -128 * sum;
    const float share = scale * float(sum);
    memcpy(offsets + g * rows, m.format == Format::int8 ? static_cast<const void*>(&owed) : &share, 4);
  }
}

void narrow_row(const Matrix& m, const float* values, uint16_t* narrowed, Range inputs) {
  int64_t i = inputs.begin;
  for (; i + kLanes <= inputs.end; i += kLanes) store_bf16(narrowed + i, load<f32v>(values + i));
  for (; i < inputs.end; i++) narrowed[i] = narrow(values[i]);
  if (inputs.end == m.inputs) pad_rounded(narrowed + inputs.end, m.inputs);
}

}  // namespace

void round_row(const Matrix& m, const float* values, uint8_t* rounded, float* scales, uint32_t* offsets, int64_t rows,
               Range inputs) {
  if (m.quantized()) {
    quantize_row(m, values, reinterpret_cast<int8_t*>(rounded), scales, offsets, rows, inputs);
  } else {
    narrow_row(m, values, reinterpret_cast<uint16_t*>(rounded), inputs);
  }
}

}  // namespace inflight
