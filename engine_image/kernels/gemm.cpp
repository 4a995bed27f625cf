#include "gemm.h"

#include <cerrno>
#include <memory>
#include <new>

namespace inflight {

void multiply(const Matrix& m, const Input& x, Range rows, Range panels, const Output& out) {
  const int64_t count = rows.end - rows.begin;
  const bool tiles = by_tiles(m, count);
  const int64_t most = tiles ? kTileBlockRows : kVectorBlockRows, unit = tiles ? 2 * kTileHeight : 1;
  const int blocks = int((count + most - 1) / most);
  for (int i = 0; i < blocks; i++) {
    const Range block = share(count, i, blocks, unit);
    const ProductPart part{m, x, out, rows.begin + block.begin, int(block.end - block.begin), panels.begin, panels.end};
    if (tiles) {
      multiply_by_tiles(part);
    } else {
      multiply_by_vectors(part);
    }
  }
}

}  // namespace inflight

using namespace inflight;

// out [rows, outputs] = x [rows, inputs] * m^T, all float32 and contiguous.
INFLIGHT_EXPORT int inflight_matmul(Team* team, const Matrix* m, const float* x, int64_t rows, float* out) {
  Input input{x, m->inputs, nullptr, nullptr, nullptr, rows};
  const int64_t groups = m->num_groups(), width = m->padded_inputs();
  std::unique_ptr<uint8_t[]> rounded;
  std::unique_ptr<float[]> scales;
  std::unique_ptr<uint32_t[]> offsets;
  if (m->rounds()) {
    rounded.reset(new (std::nothrow) uint8_t[(rows + kSpareRows) * width * m->rounded_bytes()]);
    scales.reset(new (std::nothrow) float[rows * groups]);
    offsets.reset(new (std::nothrow) uint32_t[rows * groups]);
    if (!rounded || !scales || !offsets) return ENOMEM;
    input = {nullptr, width, rounded.get(), scales.get(), offsets.get(), rows};
  }
  const Output output{Output::kStore, out, m->outputs, m->outputs, nullptr};
  team->run([&](int tid) {
    if (m->rounds()) {
      const Range mine = share(rows, tid, team->size());
      for (int64_t r = mine.begin; r < mine.end; r++)
        round_row(*m, x + r * m->inputs, &rounded[r * width * m->rounded_bytes()], scales.get() + r, offsets.get() + r,
                  rows, {0, m->inputs});
      team->barrier();
    }
    multiply(*m, input, {0, rows}, share(m->num_panels(), tid, team->size()), output);
  });
  return 0;
}

INFLIGHT_EXPORT int inflight_lanes() { return kLanes; }
