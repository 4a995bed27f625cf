// Paged attention over a KV cache that stays where it is: grouped-query, causal, with sliding windows and soft caps.
#pragma once

#include <cstdint>

#include "team.h"

namespace inflight {

// The KV cache of all layers, as `cpu_native.py` describes it (the same fields, in this order).
//
// Layer by layer, block by block, kv head by kv head: the head's keys, then its values. The keys lie
// [head_dim / P][block_size][P], the values [block_size / P][head_dim][P], where P = 2 for bfloat16 and 1 for float32:
// a register of keys holds one dimension (a pair of them) of many tokens, a register of values one token (a pair) in
// many dimensions, so neither product needs a sum across lanes.
struct KVCache {
  uint8_t* data;           // on a cache line
  int64_t num_layers;
  int64_t num_blocks;
  int64_t block_size;      // a multiple of 16
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;        // a multiple of 16
  int64_t element_bytes;   // 2: bfloat16, 4: float32
  const int64_t* windows;  // [num_layers]: tokens a query sees, itself included; 0: all
  float scale;             // of queries times keys
  float softcap;           // scores s become softcap * tanh(s / softcap); 0: as they are
};

// A prefill chunk (`ChunkSpan` in Python).
struct Chunk {
  int64_t first, length, start;
  const int64_t* block_ids;
};

// The attention of a step on a team's threads, and the division of its work. Made once, prepared for every step.
class AttentionStep;

// Returns whether the step is one of this team, and prepared for so many tokens.
bool fits(const AttentionStep* step, const Team* team, int64_t num_tokens);

// float32 [head_dim] of one token of the step and one kv head, into the cache.
//
// Two tokens whose values share lanes of the cache must be written by the same thread, the first one before the second.
void write_key(const AttentionStep* step, int layer, int64_t token, int64_t kv_head, const float* k);
void write_value(const AttentionStep* step, int layer, int64_t token, int64_t kv_head, const float* v);

// Returns whether the values of `token` share lanes with those of the token before it.
bool shares_lanes(const AttentionStep* step, int64_t token);

// Inside `Team::run` of the step's team, by every thread, when all keys and values are written; nothing may have been
// `take`n since the last barrier. The results are complete after the next.
//
// q, out: float32 rows of num_heads * head_dim, one for each token of the step. Strides are in floats, from a row to the
// next.
void attend(AttentionStep* step, int layer, const float* q, int64_t q_stride, float* out, int64_t out_stride, int tid);

}  // namespace inflight
