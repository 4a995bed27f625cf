#include "matrix.h"

#include <sys/mman.h>

#include <cerrno>
#include <cmath>

#include "team.h"

namespace inflight {

namespace {

constexpr int64_t kHugePage = 2 << 20;

enum class Source : int32_t { float32 = 0, bfloat16 = 1 };

float source_value(const void* row, Source source, int64_t i) {
  return source == Source::float32 ? static_cast<const float*>(row)[i] : widen(static_cast<const uint16_t*>(row)[i]);
}

// Finite values of a scale or a minimum; what is too large for float16 becomes its greatest number.
uint16_t to_half(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x >= 65504.0f) return sign | 0x7bff;
  if (x < 6.103515625e-05f) return sign | uint16_t(std::lrint(x * 16777216.0f));  // denormal: units of 2^-24
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits += 0xfff + ((bits >> 13) & 1);
  return sign | uint16_t((bits >> 13) - (112 << 10));
}

float from_half(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const float x = exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(float(1024 + fraction), exponent - 25);
  return half & 0x8000 ? -x : x;
}

// Rows of a source that belong to one panel, by its columns; null where a column is of another source.
struct Columns {
  const uint8_t* row[kPanel] = {};
  Source source;

  float value(int c, int64_t i) const { return source_value(row[c], source, i); }
};

void pack_float32(const Matrix& m, const Columns& from, float* to) {
  for (int64_t i = 0; i < m.inputs; i++)
    for (int c = 0; c < kPanel; c++)
      if (from.row[c]) to[i * kPanel + c] = from.value(c, i);
}

void pack_bfloat16(const Matrix& m, const Columns& from, uint16_t* to) {
  for (int64_t i = 0; i < m.inputs; i += kBf16Run, to += kBf16Run * kPanel)
    for (int c = 0; c < kPanel; c++) {
      if (!from.row[c]) continue;
      uint16_t* run = to + kBf16Run * c;
      if (from.source == Source::bfloat16 && i + kBf16Run <= m.inputs) {
        memcpy(run, from.row[c] + 2 * i, 2 * kBf16Run);
      } else {
        for (int64_t j = i; j < i + kBf16Run && j < m.inputs; j++) run[j - i] = narrow(from.value(c, j));
      }
    }
}

// Where input i of a column lies: in a panel an element of bfloat16, in a group a byte of int8 or half a byte of int4.
constexpr int64_t at_element(int64_t i, int column) {
  return (i / kBf16Run * kPanel + column) * kBf16Run + i % kBf16Run;
}
constexpr int64_t at_byte(int64_t i, int column) { return (i / kRun * kPanel + column) * kRun + i % kRun; }
constexpr int64_t at_half(int64_t i, int column) { return (i / (2 * kRun) * kPanel + column) * kRun + i % kRun; }
constexpr bool in_lower_half(int64_t i) { return i % (2 * kRun) < kRun; }

void pack_int8_group(const float* values, int count, uint8_t* group, int column) {
  float largest = 0;
  for (int i = 0; i < count; i++) largest = std::fabs(values[i]) > largest ? std::fabs(values[i]) : largest;
  const float scale = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
  for (int i = 0; i < count; i++)
    group[at_byte(i, column)] = uint8_t(128 + int(std::nearbyint(values[i] * inverse)));
  memcpy(group + kInt8Group * kPanel + 4 * column, &scale, 4);
}

void pack_int4_group(const float* values, int count, uint8_t* group, int column) {
  float least = values[0], greatest = values[0];
  for (int i = 1; i < count; i++) {
    least = values[i] < least ? values[i] : least;
    greatest = values[i] > greatest ? values[i] : greatest;
  }
  // The rounding of llama.cpp's Q4_1: weights that it quantized are reproduced.
  const uint16_t halves[2] = {to_half((greatest - least) / 15), to_half(least)};
  const float scale = from_half(halves[0]), minimum = from_half(halves[1]), inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < count; i++) {
    const float q = std::nearbyint((values[i] - minimum) * inverse);
    const int bounded = q < 0 ? 0 : q > 15 ? 15 : int(q);
    group[at_half(i, column)] |= uint8_t(bounded << (in_lower_half(i) ? 0 : 4));
  }
  memcpy(group + kInt4Group / 2 * kPanel + 4 * column, halves, 4);
}

void pack_groups(const Matrix& m, const Columns& from, uint8_t* panel) {
  const int64_t group_bytes = m.panel_bytes() / m.num_groups();
  for (int64_t g = 0; g < m.num_groups(); g++, panel += group_bytes) {
    const int64_t begin = g * m.group();
    const int count = int(m.inputs - begin < m.group() ? m.inputs - begin : m.group());
    for (int c = 0; c < kPanel; c++) {
      if (!from.row[c]) continue;
      float values[kInt8Group];
      for (int i = 0; i < count; i++) values[i] = from.value(c, begin + i);
      if (m.format == Format::int8) {
        pack_int8_group(values, count, panel, c);
      } else {
        pack_int4_group(values, count, panel, c);
      }
    }
  }
}

void pack_panel(const Matrix& m, const Columns& from, uint8_t* panel) {
  if (m.format == Format::float32) {
    pack_float32(m, from, reinterpret_cast<float*>(panel));
  } else if (m.format == Format::bfloat16) {
    pack_bfloat16(m, from, reinterpret_cast<uint16_t*>(panel));
  } else {
    pack_groups(m, from, panel);
  }
}

}  // namespace

int64_t Matrix::panel_bytes() const {
  switch (format) {
    case Format::float32:
      return inputs * kPanel * 4;
    case Format::bfloat16:
      return padded_inputs() * kPanel * 2;
    case Format::int8:
      return num_groups() * (kInt8Group * kPanel + 4 * kPanel);
    case Format::int4:
      return num_groups() * (kInt4Group / 2 * kPanel + 4 * kPanel);
  }
  return 0;
}

void Matrix::read_row(int64_t output, float* row) const {
  const uint8_t* from = panel(output / kPanel);
  const int column = int(output % kPanel);
  switch (format) {
    case Format::float32:
      for (int64_t i = 0; i < inputs; i++) row[i] = reinterpret_cast<const float*>(from)[i * kPanel + column];
      return;
    case Format::bfloat16:
      for (int64_t i = 0; i < inputs; i++)
        row[i] = widen(reinterpret_cast<const uint16_t*>(from)[at_element(i, column)]);
      return;
    case Format::int8:
      for (int64_t i = 0; i < inputs; i++) {
        const uint8_t* group = from + i / kInt8Group * (kInt8Group * kPanel + 4 * kPanel);
        float scale;
        memcpy(&scale, group + kInt8Group * kPanel + 4 * column, 4);
        row[i] = scale * (group[at_byte(i % kInt8Group, column)] - 128);
      }
      return;
    case Format::int4:
      for (int64_t i = 0; i < inputs; i++) {
        const uint8_t* group = from + i / kInt4Group * (kInt4Group / 2 * kPanel + 4 * kPanel);
        uint16_t halves[2];
        memcpy(halves, group + kInt4Group / 2 * kPanel + 4 * column, 4);
        const uint8_t both = group[at_half(i % kInt4Group, column)];
        row[i] = from_half(halves[0]) * (in_lower_half(i % kInt4Group) ? both & 15 : both >> 4) + from_half(halves[1]);
      }
      return;
  }
}

}  // namespace inflight

using namespace inflight;

INFLIGHT_EXPORT void* inflight_allocate(int64_t bytes) {
  const int64_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* at = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(at);
  const int64_t lead = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (lead > 0) munmap(begin, lead);
  munmap(begin + lead + size, kHugePage - lead);
#if defined(MADV_HUGEPAGE)
  madvise(begin + lead, size, MADV_HUGEPAGE);
#endif
  return begin + lead;
}

INFLIGHT_EXPORT void inflight_release(void* memory, int64_t bytes) {
  munmap(memory, (bytes + kHugePage - 1) / kHugePage * kHugePage);
}

// Bytes of a packed matrix.
INFLIGHT_EXPORT int64_t inflight_matrix_bytes(int format, int64_t outputs, int64_t inputs) {
  const Matrix m{Format(format), 0, outputs, inputs, nullptr};
  return m.num_panels() * m.panel_bytes();
}

// Pack `count` rows [count, inputs] of float32 (source 0) or bfloat16 (1). The first is output `first`; with
// `interleaved` they fill every other register of the panels, from register `first` (0 or 1), so that the products of a
// gate and its partner are computed together. The memory was zero before the first call, which is the one for first 0.
INFLIGHT_EXPORT int inflight_matrix_pack(Team* team, const Matrix* m, const void* rows, int source, int64_t count,
                                         int64_t first, int interleaved) {
  if (m->format == Format::bfloat16 && m->inputs % 2) return EINVAL;
  const int64_t begin = interleaved ? 0 : first, end = interleaved ? m->outputs : first + count;
  if (begin < 0 || end > m->outputs || (interleaved && (first < 0 || first > 1))) return EINVAL;
  const auto* bytes = static_cast<const uint8_t*>(rows);
  const int64_t stride = m->inputs * (Source(source) == Source::float32 ? 4 : 2);
  const int64_t first_panel = begin / kPanel, num_panels = (end + kPanel - 1) / kPanel - first_panel;
  team->run([&](int tid) {
    const Range mine = share(num_panels, tid, team->size());
    for (int64_t panel = first_panel + mine.begin; panel < first_panel + mine.end; panel++) {
      Columns from;
      from.source = Source(source);
      for (int c = 0; c < kPanel; c++) {
        const int64_t row = interleaved ? panel * kLanes + c % kLanes : panel * kPanel + c - first;
        const bool is_of_source = !interleaved || c / kLanes == first;
        if (is_of_source && row >= 0 && row < count) from.row[c] = bytes + row * stride;
      }
      pack_panel(*m, from, m->data + panel * m->panel_bytes());
    }
  });
  return 0;
}

// Rows by number, in float32 [count, inputs].
INFLIGHT_EXPORT int inflight_matrix_rows(const Matrix* m, const int64_t* outputs, int64_t count, float* rows) {
  for (int64_t i = 0; i < count; i++) {
    if (outputs[i] < 0 || outputs[i] >= m->outputs) return EINVAL;
    m->read_row(outputs[i], rows + i * m->inputs);
  }
  return 0;
}
