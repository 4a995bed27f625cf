// Work of a thread: a unit of the plan for one kv head, and the memory of that unit's rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_matrix.h"
#include "attention_plan.h"
#include "attention_tile.h"
#include "tiles.h"

namespace inflight {

// Rows from which a unit's products are those of tiles. With fewer, tiles would multiply what is not there.
constexpr int64_t kMatrixFrom = 8;

inline int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Where a thread keeps a unit's rows. Rows that tiles multiply are rounded to bfloat16, and fill whole tiles.
class Scratch {
 public:
  Scratch(float* memory, int64_t tile_rows, int64_t head_dim) : memory_(memory) {
    mixed = take(tile_rows * head_dim);
    queries = take(tile_rows * head_dim);
    piece_mixed = take((kTiles ? kSquareRows : kMostRows) * head_dim);
    weights = take((kTiles ? kSquareRows : kMostRows) * kPiece);
    top = take(tile_rows);
    total = take(tile_rows);
    if (!kTiles) return;
    rounded_queries = take_rounded(whole(tile_rows, kSquareRows) * head_dim);
    rounded_weights = take_rounded(kSquareRows * kPiece);
    values = take_rounded(kPiece * head_dim);
  }

  static int64_t floats(int64_t tile_rows, int64_t head_dim) {
    return Scratch(nullptr, tile_rows, head_dim).used_;
  }

  float* mixed;        // [tile_rows][head_dim]
  float* queries;      // [tile_rows][head_dim], scaled
  float* piece_mixed;  // [kMostRows or kSquareRows][head_dim]
  float* weights;      // [kMostRows or kSquareRows][kPiece]: scores, then their exponentials
  float* top;          // [tile_rows]
  float* total;        // [tile_rows]
  uint16_t* rounded_queries = nullptr;  // [tile_rows][head_dim]
  uint16_t* rounded_weights = nullptr;  // [kSquareRows][kPiece]
  uint16_t* values = nullptr;           // [kPiece][head_dim]

 private:
  float* take(int64_t count) {
    float* taken = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += whole(count, kCacheLine / sizeof(float));
    return taken;
  }
  uint16_t* take_rounded(int64_t count) { return reinterpret_cast<uint16_t*>(take((count + 1) / 2)); }

  float* const memory_;
  int64_t used_ = 0;
};

// Data of a unit, for one kv head.
struct Job {
  const KVCache& cache;
  const Sequence& sequence;
  const Unit& unit;
  int64_t window;
  int64_t group;
  const uint8_t* layer;  // the layer's cache
  int64_t kv_head;

  int64_t num_rows() const { return unit.num_queries * group; }
  // Row r is query r / group in the kv head's query head r % group.
  Context context(int64_t row) const {
    return context_of(sequence.start + unit.first_query + row / group, window);
  }
  int64_t head_bytes() const { return cache.head_dim * cache.block_size * cache.element_bytes; }
  // The kv head's part of a block: its keys, then its values.
  const uint8_t* block(int64_t id) const {
    return layer + (id * cache.num_kv_heads + kv_head) * 2 * head_bytes();
  }
};

inline void find_columns(const Job& job, int64_t piece, Columns* columns) {
  const KVCache& cache = job.cache;
  const int64_t pair = 4 / cache.element_bytes, lo = piece * kPiece;
  const int64_t hi = std::min(lo + kPiece, job.context(job.num_rows() - 1).hi);
  columns->key_stride = cache.block_size * 4;
  columns->head_dim = cache.head_dim;
  columns->num_steps = cache.head_dim / pair;
  const int64_t* block_id = job.sequence.block_ids + lo / cache.block_size;
  int64_t offset = lo % cache.block_size;
  const uint8_t *keys = nullptr, *values = nullptr;
  int64_t column = 0;
  for (int64_t token = lo; token < hi; token += kLanes, column++) {
    const uint8_t* block = job.block(*block_id);
    columns->keys[column] = keys = block + offset * 4;
    columns->values[column] = values = block + job.head_bytes() + offset / pair * cache.head_dim * 4;
    offset += kLanes;
    if (offset == cache.block_size) block_id++, offset = 0;
  }
  columns->num_columns = column;
  for (const int64_t end = column + kTileVectors; column < end; column++)
    columns->keys[column] = keys, columns->values[column] = values;
}

// The first piece of a row's context: there it begins.
inline int64_t first_piece(Context context) { return context.lo / kPiece; }

inline bool is_for_tiles(const Job& job) {
  return kTiles && job.cache.element_bytes == 2 && job.cache.head_dim % kTileInputs == 0 &&
         job.num_rows() >= kMatrixFrom;
}

}  // namespace inflight
