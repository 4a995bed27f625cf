// Weights of the built-in model back to float32. Formats: ggml-common.h and ggml-quants.c of llama.cpp. The results are
// those of the gguf package to the last bit: a product is rounded before anything is added to it.
#include <cerrno>

#include "simd.h"
#include "team.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

namespace inflight {

namespace {

float widen_half(const uint8_t* from) {
  uint16_t half;
  memcpy(&half, from, 2);
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7fff;
  uint32_t bits;
  float x;
  if (magnitude >= 0x7c00) {
    bits = 0x7f800000 | (magnitude << 13);  // infinity, NaN
  } else if (magnitude >= 0x0400) {
    bits = (magnitude << 13) + ((127 - 15) << 23);
  } else {
    x = float(magnitude) * 0x1p-24f;  // denormal, exact
    memcpy(&bits, &x, 4);
  }
  bits |= sign;
  memcpy(&x, &bits, 4);
  return x;
}

// Each format: `kValues` values of a block, `kBytes` of it in the file.

struct Q4_1 {
  static constexpr int kValues = 32, kBytes = 20;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from), m = widen_half(from + 2);
    for (int i = 0; i < 16; i++) {
      to[i] = d * float(from[4 + i] & 15) + m;
      to[i + 16] = d * float(from[4 + i] >> 4) + m;
    }
  }
};

struct Q8_0 {
  static constexpr int kValues = 32, kBytes = 34;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from);
    for (int i = 0; i < 32; i++) to[i] = float(int8_t(from[2 + i])) * d;
  }
};

template <class Format>
int dequantize(Team* team, const uint8_t* from, int64_t count, float* to) {
  if (count % Format::kValues != 0) return EINVAL;
  team->run([&](int tid) {
    const Range own = share(count / Format::kValues, tid, team->size());
    for (int64_t i = own.begin; i < own.end; i++)
      Format::block(from + i * Format::kBytes, to + i * Format::kValues);
  });
  return 0;
}

}  // namespace

}  // namespace inflight

// type: a ggml_type. count: of values. EINVAL: another type, or not whole blocks.
INFLIGHT_EXPORT int inflight_dequantize(inflight::Team* team, int type, const uint8_t* from, int64_t count, float* to) {
  using namespace inflight;
  switch (type) {
    case 3: return dequantize<Q4_1>(team, from, count, to);
    case 8: return dequantize<Q8_0>(team, from, count, to);
    default: return EINVAL;
  }
}
