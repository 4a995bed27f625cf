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

// Where rows of a source go: row i becomes output first + i, or with `interleaved` every other register of the panels.
struct Rows {
  const uint8_t* data;
  Source source;
  int64_t count, stride;  // bytes
  int64_t first;
  bool interleaved;

  int64_t output(int64_t i) const { return first + (interleaved ? i / kLanes * kPanel + i % kLanes : i); }
};

void pack_float32(const Matrix& m, const void* row, Source source, float* to) {
  for (int64_t i = 0; i < m.inputs; i++) to[i * kPanel] = source_value(row, source, i);
}

void pack_bfloat16(const Matrix& m, const void* row, Source source, uint16_t* to) {
  if (source == Source::bfloat16) {
    const auto* from = static_cast<const uint16_t*>(row);
    for (int64_t i = 0; i + 1 < m.inputs; i += 2) memcpy(to + i * kPanel, from + i, 4);
  } else {
    const auto* from = static_cast<const float*>(row);
    for (int64_t i = 0; i < m.inputs; i++) to[i / 2 * 2 * kPanel + i % 2] = narrow(from[i]);
  }
}

void pack_int8(const Matrix& m, const void* row, Source source, uint8_t* panel, int column) {
  constexpr int64_t group_bytes = kInt8Group * kPanel + 4 * kPanel;
  for (int64_t g = 0; g < m.num_groups(); g++, panel += group_bytes) {
    const int64_t from = g * kInt8Group;
    const int count = int(m.inputs - from < kInt8Group ? m.inputs - from : kInt8Group);
    float values[kInt8Group], largest = 0;
    for (int i = 0; i < count; i++) {
      values[i] = source_value(row, source, from + i);
      largest = std::fmax(largest, std::fabs(values[i]));
    }
    const float scale = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
    for (int i = 0; i < count; i++)
      panel[(i / 4 * kPanel + column) * 4 + i % 4] = uint8_t(128 + std::lrint(values[i] * inverse));
    memcpy(panel + kInt8Group * kPanel + 4 * column, &scale, 4);
  }
}

void pack_int4(const Matrix& m, const void* row, Source source, uint8_t* panel, int column) {
  constexpr int64_t group_bytes = kInt4Group / 2 * kPanel + 4 * kPanel;
  uint8_t* lane = panel + column / kLanes * kLanes * 4 + column % kLanes * 4;
  uint8_t* scales = panel + kInt4Group / 2 * kPanel + 4 * column;
  for (int64_t g = 0; g < m.num_groups(); g++, lane += group_bytes, scales += group_bytes) {
    const int64_t from = g * kInt4Group;
    const int count = int(m.inputs - from < kInt4Group ? m.inputs - from : kInt4Group);
    float values[kInt4Group], least = INFINITY, greatest = -INFINITY;
    for (int i = 0; i < count; i++) {
      values[i] = source_value(row, source, from + i);
      least = std::fmin(least, values[i]);
      greatest = std::fmax(greatest, values[i]);
    }
    // As in llama.cpp's Q4_1: weights that were quantized by it are met again.
    const uint16_t halves[2] = {to_half((greatest - least) / 15), to_half(least)};
    const float scale = from_half(halves[0]), minimum = from_half(halves[1]), inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < count; i++) {
      const float q = std::fmin(std::fmax(std::round((values[i] - minimum) * inverse), 0.0f), 15.0f);
      lane[i / 8 * kPanel * 4 + i % 4] |= uint8_t(q) << (i % 8 < 4 ? 0 : 4);
    }
    memcpy(scales, halves, 4);
  }
}

void pack_row(const Matrix& m, int64_t output, const void* row, Source source) {
  uint8_t* panel = m.data + output / kPanel * m.panel_bytes();
  const int column = int(output % kPanel);
  switch (m.format) {
    case Format::float32:
      return pack_float32(m, row, source, reinterpret_cast<float*>(panel) + column);
    case Format::bfloat16:
      return pack_bfloat16(m, row, source, reinterpret_cast<uint16_t*>(panel) + 2 * column);
    case Format::int8:
      return pack_int8(m, row, source, panel, column);
    case Format::int4:
      return pack_int4(m, row, source, panel, column);
  }
}

// The sum's 128 must be there for absent weights too, or they would count as -128.
void clear_int8(const Matrix& m) {
  constexpr int64_t weights = kInt8Group * kPanel;
  for (int64_t g = 0; g < m.num_panels() * m.num_groups(); g++) memset(m.data + g * (weights + 4 * kPanel), 128, weights);
}

}  // namespace

int64_t Matrix::panel_bytes() const {
  switch (format) {
    case Format::float32:
      return inputs * kPanel * 4;
    case Format::bfloat16:
      return inputs * kPanel * 2;
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
        row[i] = widen(reinterpret_cast<const uint16_t*>(from)[(i / 2 * kPanel + column) * 2 + i % 2]);
      return;
    case Format::int8:
      for (int64_t i = 0; i < inputs; i++) {
        const uint8_t* group = from + i / kInt8Group * (kInt8Group * kPanel + 4 * kPanel);
        float scale;
        memcpy(&scale, group + kInt8Group * kPanel + 4 * column, 4);
        const int64_t j = i % kInt8Group;
        row[i] = scale * (group[(j / 4 * kPanel + column) * 4 + j % 4] - 128);
      }
      return;
    case Format::int4:
      for (int64_t i = 0; i < inputs; i++) {
        const uint8_t* group = from + i / kInt4Group * (kInt4Group / 2 * kPanel + 4 * kPanel);
        uint16_t halves[2];
        memcpy(halves, group + kInt4Group / 2 * kPanel + 4 * column, 4);
        const int64_t j = i % kInt4Group;
        const uint8_t both = group[j / 8 * kPanel * 4 + column * 4 + j % 4];
        row[i] = from_half(halves[0]) * (j % 8 < 4 ? both & 15 : both >> 4) + from_half(halves[1]);
      }
      return;
  }
}

}  // namespace inflight

using namespace inflight;

// Zeroed memory in huge pages, as products read weights from end to end. Null where there is none.
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
  const Source kind = Source(source);
  const Rows from{static_cast<const uint8_t*>(rows), kind, count, m->inputs * (kind == Source::float32 ? 4 : 2),
                  interleaved ? first * kLanes : first, interleaved != 0};
  if (count > 0 && from.output(count - 1) >= m->outputs) return EINVAL;
  if (m->format == Format::bfloat16 && m->inputs % 2) return EINVAL;
  if (m->format == Format::int8 && first == 0) clear_int8(*m);
  team->run([&](int tid) {
    const Range mine = share(count, tid, team->size(), kLanes);
    for (int64_t i = mine.begin; i < mine.end; i++) pack_row(*m, from.output(i), from.data + i * from.stride, kind);
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
