#include <cstring>

#include "attention_plan.h"
#include "simd.h"

namespace inflight {

namespace {

void write_keys(const KVCache& cache, uint8_t* keys, int64_t offset, const float* k) {
  const int64_t stride = cache.block_size * 4;
  uint8_t* to = keys + offset * 4;
  if (cache.element_bytes == 2) {
    uint16_t row[kMostHeadDim];
    for (int64_t d = 0; d < cache.head_dim; d += kLanes) store_bf16(row + d, load<f32v>(k + d));
    for (int64_t d = 0; d < cache.head_dim; d += 2, to += stride) memcpy(to, row + d, 4);
  } else {
    for (int64_t d = 0; d < cache.head_dim; d++, to += stride) memcpy(to, k + d, 4);
  }
}

void write_values(const KVCache& cache, uint8_t* values, int64_t offset, const float* v) {
  if (cache.element_bytes == 4) {
    memcpy(values + offset * cache.head_dim * 4, v, cache.head_dim * 4);
    return;
  }
  uint8_t* to = values + offset / 2 * cache.head_dim * 4;
  for (int64_t d = 0; d < cache.head_dim; d += kLanes) {
    const u32v upper = narrow_to_upper(load<f32v>(v + d));
    // The first of a pair comes before the second: what lies there is of no use to anyone.
    const u32v pair = offset % 2 == 0 ? upper >> 16 : (load<u32v>(to + d * 4) & 0xffffu) | (upper & 0xffff0000u);
    store(to + d * 4, pair);
  }
}

// Two tokens that share lanes of the values belong to one thread.
bool shares_lanes(const AttentionStep* step, int64_t token) {
  return token > 0 && token < step->num_tokens && step->kv_slots[token] % 2 == 1 &&
         step->kv_slots[token - 1] == step->kv_slots[token] - 1;
}

}  // namespace

void write_kv(const AttentionStep* step, int layer, const float* k, const float* v, int64_t stride, int tid) {
  const KVCache& cache = *step->cache;
  const int64_t head_bytes = cache.head_dim * cache.block_size * cache.element_bytes;
  uint8_t* data = layer_of(cache, layer);
  Range tokens = share(step->num_tokens, tid, step->team->size());
  if (shares_lanes(step, tokens.begin)) tokens.begin++;
  if (shares_lanes(step, tokens.end)) tokens.end++;
  for (int64_t token = tokens.begin; token < tokens.end; token++) {
    const int64_t slot = step->kv_slots[token], offset = slot % cache.block_size;
    uint8_t* block = data + slot / cache.block_size * 2 * cache.num_kv_heads * head_bytes;
    for (int64_t head = 0; head < cache.num_kv_heads; head++) {
      const int64_t column = token * stride + head * cache.head_dim;
      uint8_t* keys = block + head * 2 * head_bytes;
      write_keys(cache, keys, offset, k + column);
      write_values(cache, keys + head_bytes, offset, v + column);
    }
  }
}

}  // namespace inflight
