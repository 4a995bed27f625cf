// Weights of GGUF files back to float32. Formats: ggml-common.h and ggml-quants.c of llama.cpp. The results are those of
// the gguf package to the last bit: a product is rounded before anything is added to it.
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

struct Q4_0 {
  static constexpr int kValues = 32, kBytes = 18;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from);
    for (int i = 0; i < 16; i++) {
      to[i] = d * float((from[2 + i] & 15) - 8);
      to[i + 16] = d * float((from[2 + i] >> 4) - 8);
    }
  }
};

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

struct Q5_0 {
  static constexpr int kValues = 32, kBytes = 22;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from);
    uint32_t high;
    memcpy(&high, from + 2, 4);
    for (int i = 0; i < 16; i++) {
      to[i] = d * float(int((from[6 + i] & 15) | ((high >> i & 1) << 4)) - 16);
      to[i + 16] = d * float(int((from[6 + i] >> 4) | ((high >> (i + 16) & 1) << 4)) - 16);
    }
  }
};

struct Q5_1 {
  static constexpr int kValues = 32, kBytes = 24;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from), m = widen_half(from + 2);
    uint32_t high;
    memcpy(&high, from + 4, 4);
    for (int i = 0; i < 16; i++) {
      to[i] = d * float(int((from[8 + i] & 15) | ((high >> i & 1) << 4))) + m;
      to[i + 16] = d * float(int((from[8 + i] >> 4) | ((high >> (i + 16) & 1) << 4))) + m;
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

// Eight scales and eight offsets of 6 bits each in 12 bytes.
void unpack_scales(const uint8_t* from, uint8_t* scales, uint8_t* offsets) {
  for (int i = 0; i < 4; i++) {
    scales[i] = from[i] & 63;
    offsets[i] = from[4 + i] & 63;
    scales[4 + i] = (from[8 + i] & 15) | ((from[i] >> 2) & 48);
    offsets[4 + i] = (from[8 + i] >> 4) | ((from[4 + i] >> 2) & 48);
  }
}

struct Q4_K {
  static constexpr int kValues = 256, kBytes = 144;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from), m = widen_half(from + 2);
    uint8_t scales[8], offsets[8];
    unpack_scales(from + 4, scales, offsets);
    for (int part = 0; part < 8; part++) {
      const uint8_t* q = from + 16 + part / 2 * 32;
      const float scale = d * float(scales[part]), offset = m * float(offsets[part]);
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; i++) to[part * 32 + i] = scale * float((q[i] >> shift) & 15) - offset;
    }
  }
};

struct Q5_K {
  static constexpr int kValues = 256, kBytes = 176;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from), m = widen_half(from + 2);
    uint8_t scales[8], offsets[8];
    unpack_scales(from + 4, scales, offsets);
    const uint8_t* high = from + 16;
    for (int part = 0; part < 8; part++) {
      const uint8_t* q = from + 48 + part / 2 * 32;
      const float scale = d * float(scales[part]), offset = m * float(offsets[part]);
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; i++) {
        const int value = ((q[i] >> shift) & 15) | ((high[i] >> part & 1) << 4);
        to[part * 32 + i] = scale * float(value) - offset;
      }
    }
  }
};

struct Q6_K {
  static constexpr int kValues = 256, kBytes = 210;
  static void block(const uint8_t* from, float* to) {
    const float d = widen_half(from + 208);
    for (int part = 0; part < 8; part++) {
      const int half = part / 4, quarter = part % 4;
      const uint8_t* low = from + half * 64 + quarter % 2 * 32;
      const uint8_t* high = from + 128 + half * 32;
      for (int i = 0; i < 32; i++) {
        const float scale = d * float(int8_t(from[192 + part * 2 + i / 16]));
        const int value = ((low[i] >> (quarter / 2 * 4)) & 15) | ((high[i] >> (quarter * 2) & 3) << 4);
        to[part * 32 + i] = scale * float(value - 32);
      }
    }
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
    case 2: return dequantize<Q4_0>(team, from, count, to);
    case 3: return dequantize<Q4_1>(team, from, count, to);
    case 6: return dequantize<Q5_0>(team, from, count, to);
    case 7: return dequantize<Q5_1>(team, from, count, to);
    case 8: return dequantize<Q8_0>(team, from, count, to);
    case 12: return dequantize<Q4_K>(team, from, count, to);
    case 13: return dequantize<Q5_K>(team, from, count, to);
    case 14: return dequantize<Q6_K>(team, from, count, to);
    default: return EINVAL;
  }
}
