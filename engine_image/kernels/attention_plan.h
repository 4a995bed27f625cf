// How the attention of one step is divided among threads.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "tiles.h"

namespace inflight {

// Tokens of context whose softmax is computed at once, from a multiple of this number on. Results of pieces are folded
// in order, so a query's result depends on its own tokens alone: not on the batch, the chunks or the threads.
constexpr int64_t kPiece = 256;

// Rows (a query of one head) that go over the same keys one after another, while those are in the core's cache. More
// with matrix tiles: values that do not lie as tiles read them are copied once for all rows.
constexpr int64_t kTileRows = kTiles ? 96 : 48;

constexpr int64_t kMostHeadDim = 256;

// Where a layer's part of the cache begins.
inline uint8_t* layer_of(const KVCache& cache, int layer) {
  return cache.data + layer * cache.num_blocks * 2 * cache.num_kv_heads * cache.head_dim * cache.block_size *
                          cache.element_bytes;
}

// Packed tokens of one sequence; the first lies at position `start`.
struct Sequence {
  int64_t first_row, length, start;
  const int64_t* block_ids;
};

// Queries of one sequence over some pieces of its context, for one kv head after another.
struct Unit {
  int32_t sequence;
  int32_t first_query, num_queries;
  int32_t first_piece, end_piece;
  int32_t split;  // index; -1: the unit does all of its queries' pieces
};

// Queries whose pieces are units of their own. For each kv head, the thread that finishes last folds the partial results.
struct Split {
  int64_t partials;  // index of the first one's first partial result, in rows
  int32_t first_piece, num_pieces;
};

// The units of all layers with the same window.
struct Plan {
  int64_t window;  // tokens a query sees; 0: all
  std::vector<Unit> units;
  std::vector<Split> splits;
  std::vector<int32_t> num_finished;  // by split and kv head: pieces, in all layers of the step
};

// [lo, hi): the positions that the query at `position` sees.
struct Context {
  int64_t lo, hi;
};
inline Context context_of(int64_t position, int64_t window) {
  const int64_t hi = position + 1;
  return {window > 0 && hi > window ? hi - window : 0, hi};
}

class AttentionStep {
 public:
  AttentionStep(const KVCache* cache, Team* team);

  void prepare(int64_t num_tokens, const int64_t* kv_slots, int64_t num_decodes, const int64_t* block_table,
               int64_t table_stride, const int64_t* context_lens, int64_t num_chunks, const Chunk* chunks);

  Plan& plan_of(int layer) { return plans_[plan_of_layer_[layer]]; }
  float* scratch(int tid) { return aligned(scratch_) + tid * scratch_floats_; }
  // A row's result over one piece: head_dim values, then the greatest score and the sum of weights.
  int64_t partial_floats() const { return partial_floats_; }
  float* partial(int64_t row) { return aligned(partials_) + row * partial_floats_; }

  const KVCache* const cache;
  Team* const team;
  const int64_t group;         // query heads that share a kv head
  const int64_t tile_queries;  // most queries of a unit
  int64_t num_tokens = 0;
  const int64_t* kv_slots = nullptr;
  std::vector<Sequence> sequences;

 private:
  int64_t add_units(Plan* plan, int32_t sequence, int64_t split_from, int64_t partials) const;
  static float* aligned(std::vector<float>& floats);

  std::vector<Plan> plans_;
  std::vector<int32_t> plan_of_layer_;
  const int64_t partial_floats_;
  const int64_t scratch_floats_;
  std::vector<float> scratch_, partials_;
};

// Floats that `attend` needs for itself in each thread.
int64_t attend_scratch_floats(int64_t tile_rows, int64_t head_dim);

}  // namespace inflight
