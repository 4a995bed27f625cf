#include <cstring>

#include "attention_plan.h"
#include "simd.h"

namespace inflight {

namespace {

void put_key(const KVCache& cache, uint8_t* keys, int64_t offset, const float* k) {
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

void put_value(const KVCache& cache, uint8_t* values, int64_t offset, const float* v) {
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

// Where the cache has a kv head's keys of the block in which a token lies; the values follow.
struct Place {
  Place(const AttentionStep* step, int layer, int64_t token, int64_t kv_head) {
    const KVCache& cache = *step->cache;
    const int64_t slot = step->kv_slots[token], block = slot / cache.block_size;
    head_bytes = cache.head_dim * cache.block_size * cache.element_bytes;
    keys = layer_of(cache, layer) + (block * cache.num_kv_heads + kv_head) * 2 * head_bytes;
    offset = slot % cache.block_size;
  }

  uint8_t* keys;
  int64_t head_bytes, offset;
};

}  // namespace

void write_key(const AttentionStep* step, int layer, int64_t token, int64_t kv_head, const float* k) {
  const Place place(step, layer, token, kv_head);
  put_key(*step->cache, place.keys, place.offset, k);
}

void write_value(const AttentionStep* step, int layer, int64_t token, int64_t kv_head, const float* v) {
  const Place place(step, layer, token, kv_head);
  put_value(*step->cache, place.keys + place.head_bytes, place.offset, v);
}

bool shares_lanes(const AttentionStep* step, int64_t token) {
  return token > 0 && token < step->num_tokens && step->kv_slots[token] % 2 == 1 &&
         step->kv_slots[token - 1] == step->kv_slots[token] - 1;
}

}  // namespace inflight
