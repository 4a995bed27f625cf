#include "gemm.h"

#include <cerrno>
#include <memory>
#include <new>

#include "gemm_part.h"

namespace inflight {

namespace {

// Panels in one piece of work when there are many rows.
constexpr int64_t kChunkPanels = 6;

void multiply_part(const Part& part, bool tiles) {
  if (tiles) {
    multiply_by_tiles(part);
  } else {
    multiply_by_vectors(part);
  }
}

}  // namespace

void multiply(Team* team, int tid, const Matrix& m, const Input& x, int64_t rows, const Output& out) {
  const int64_t panels = m.num_panels();
  const bool tiles = by_tiles(m, rows);
  const int64_t most = tiles ? kTileBlockRows : kVectorBlockRows, unit = tiles ? 2 * kTileHeight : 1;
  if (rows <= most) {
    const Range mine = share(panels, tid, team->size());
    multiply_part({m, x, out, 0, int(rows), mine.begin, mine.end}, tiles);
    return;
  }
  const int64_t blocks = (rows + most - 1) / most, chunks = (panels + kChunkPanels - 1) / kChunkPanels;
  for (int64_t piece; (piece = team->take()) < blocks * chunks;) {
    const Range block = share(rows, int(piece / chunks), int(blocks), unit);
    const int64_t begin = piece % chunks * kChunkPanels, end = begin + kChunkPanels;
    const int count = int(block.end - block.begin);
    multiply_part({m, x, out, block.begin, count, begin, end < panels ? end : panels}, tiles);
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
                  rows);
      team->barrier();
    }
    multiply(team, tid, *m, input, rows, output);
  });
  return 0;
}

INFLIGHT_EXPORT int inflight_lanes() { return kLanes; }
