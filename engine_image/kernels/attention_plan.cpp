#include "attention_plan.h"

#include <algorithm>

#include "simd.h"

namespace inflight {

namespace {

// A sequence is split into pieces when it is more than one of so many shares of a thread's work: fewer leave threads
// waiting for the last, more are of no use, and partial results take memory.
constexpr int64_t kShares = 8;

constexpr int64_t kLineFloats = kCacheLine / sizeof(float);

int64_t whole_lines(int64_t floats) { return (floats + kLineFloats - 1) / kLineFloats * kLineFloats; }

struct Pieces {
  int32_t first, end;
  int64_t count() const { return end - first; }
};

// The pieces that a sequence's queries see.
Pieces pieces_of(const Sequence& sequence, int64_t window) {
  const int64_t last = sequence.start + sequence.length - 1;
  return {int32_t(context_of(sequence.start, window).lo / kPiece), int32_t(last / kPiece + 1)};
}

}  // namespace

AttentionStep::AttentionStep(const KVCache* cache, Team* team)
    : cache(cache),
      team(team),
      group(cache->num_heads / cache->num_kv_heads),
      tile_queries(std::max<int64_t>(1, kTileRows / group)),
      partial_floats_(whole_lines(cache->head_dim + 2)),
      scratch_floats_(whole_lines(attend_scratch_floats(tile_queries * group, cache->head_dim))) {
  for (int64_t layer = 0; layer < cache->num_layers; layer++) {
    const int64_t window = cache->windows[layer];
    size_t index = 0;
    while (index < plans_.size() && plans_[index].window != window) index++;
    if (index == plans_.size()) plans_.push_back({window, {}, {}, {}});
    plan_of_layer_.push_back(int32_t(index));
  }
  scratch_.resize(team->size() * scratch_floats_ + kLineFloats);
}

void AttentionStep::prepare(int64_t num_tokens, const int64_t* kv_slots, int64_t num_decodes,
                            const int64_t* block_table, int64_t table_stride, const int64_t* context_lens,
                            int64_t num_chunks, const Chunk* chunks) {
  this->num_tokens = num_tokens;
  this->kv_slots = kv_slots;
  // Chunks first: their units are the long ones, and the short ones of decodes even out what is left.
  sequences.clear();
  for (int64_t i = 0; i < num_chunks; i++)
    sequences.push_back({chunks[i].first, chunks[i].length, chunks[i].start, chunks[i].block_ids});
  for (int64_t i = 0; i < num_decodes; i++)
    sequences.push_back({i, 1, context_lens[i] - 1, block_table + i * table_stride});

  int64_t most_partials = 0;
  for (Plan& plan : plans_) {
    plan.units.clear();
    plan.splits.clear();
    int64_t work = 0;
    for (const Sequence& sequence : sequences) work += sequence.length * pieces_of(sequence, plan.window).count();
    const int64_t split_from = work / (team->size() * kShares) + 1;
    int64_t partials = 0;
    for (size_t i = 0; i < sequences.size(); i++) partials = add_units(&plan, int32_t(i), split_from, partials);
    plan.num_finished.assign(plan.splits.size() * cache->num_kv_heads, 0);
    most_partials = std::max(most_partials, partials);
  }
  const size_t floats = most_partials * partial_floats_ + kLineFloats;
  if (floats > partials_.size()) partials_ = std::vector<float>(floats);
}

// Gives the number of partial results up to and with this sequence's.
int64_t AttentionStep::add_units(Plan* plan, int32_t index, int64_t split_from, int64_t partials) const {
  const Sequence& sequence = sequences[index];
  const int64_t num_tiles = (sequence.length + tile_queries - 1) / tile_queries;
  // The last tile, which has the longest context, comes first: no thread begins it when the others are done.
  for (int64_t tile = num_tiles - 1; tile >= 0; tile--) {
    const int64_t first = tile * tile_queries;
    const int64_t num_queries = std::min(tile_queries, sequence.length - first);
    const Pieces pieces =
        pieces_of({sequence.first_row, num_queries, sequence.start + first, sequence.block_ids}, plan->window);
    Unit unit{index, int32_t(first), int32_t(num_queries), pieces.first, pieces.end, -1};
    // Sequences with more tiles than one divide well enough by tiles.
    if (num_tiles > 1 || pieces.count() == 1 || num_queries * pieces.count() < split_from) {
      plan->units.push_back(unit);
      continue;
    }
    unit.split = int32_t(plan->splits.size());
    plan->splits.push_back({partials, pieces.first, int32_t(pieces.count())});
    partials += pieces.count() * cache->num_heads * num_queries;
    for (int32_t piece = pieces.first; piece < pieces.end; piece++) {
      unit.first_piece = piece;
      unit.end_piece = piece + 1;
      plan->units.push_back(unit);
    }
  }
  return partials;
}

bool fits(const AttentionStep* step, const Team* team, int64_t num_tokens) {
  return step->team == team && step->num_tokens == num_tokens;
}

float* AttentionStep::aligned(std::vector<float>& floats) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(floats.data());
  return floats.data() + (kCacheLine - address % kCacheLine) % kCacheLine / sizeof(float);
}

}  // namespace inflight
