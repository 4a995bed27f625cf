#include "attention.h"

#include <algorithm>
#include <cerrno>
#include <optional>

#include "attention_piece.h"
#include "attention_plan.h"
#include "attention_softmax.h"
#include "attention_unit.h"
#include "simd.h"
#include "tiles.h"

namespace inflight {

namespace {

static_assert(kPiece % (kTileVectors * kLanes) == 0 && kPiece % kSpan == 0);

// after: what the thread does next, or the same once more.
void attend_unit(const Job& job, const Job& after, const Scratch& scratch, TileScope* tiles) {
  Columns columns[2];
  Columns *here = &columns[0], *next = &columns[1];
  find_columns(job, job.unit.first_piece, here);
  for (int64_t piece = job.unit.first_piece; piece < job.unit.end_piece; piece++, std::swap(here, next)) {
    if (piece + 1 < job.unit.end_piece)
      find_columns(job, piece + 1, next);
    else
      find_columns(after, after.unit.first_piece, next);
    if (is_for_tiles(job))
      attend_piece_by_tiles(job, scratch, tiles, piece, *here);
    else if (job.cache.element_bytes == 2)
      attend_piece<BFloat16>(job, scratch, piece, *here, KeyFetcher(*next));
    else
      attend_piece<Float32>(job, scratch, piece, *here, KeyFetcher(*next));
  }
}

// The queries of a unit, times what the scores are to be multiplied with.
void gather(const Job& job, const float* q, int64_t stride, const Scratch& scratch) {
  const KVCache& cache = job.cache;
  const float factor = query_factor(cache);
  const bool rounds = BFloat16::kRounds && cache.element_bytes == 2, for_tiles = is_for_tiles(job);
  for (int64_t row = 0; row < job.num_rows(); row++) {
    const int64_t token = job.sequence.first_row + job.unit.first_query + row / job.group;
    const float* from = q + token * stride + (job.kv_head * job.group + row % job.group) * cache.head_dim;
    for (int64_t d = 0; d < cache.head_dim; d += kLanes) {
      const f32v x = load<f32v>(from + d) * factor;
      if (for_tiles) {
        store_bf16(scratch.rounded_queries + row * cache.head_dim + d, x);
        continue;
      }
      float* to = scratch.queries + row * cache.head_dim + d;
      store(to, x);
      if (rounds) round_bf16(to);
    }
  }
}

void scatter(const Job& job, const Scratch& scratch, float* out, int64_t stride) {
  const int64_t head_dim = job.cache.head_dim;
  for (int64_t row = 0; row < job.num_rows(); row++) {
    const int64_t token = job.sequence.first_row + job.unit.first_query + row / job.group;
    float* to = out + token * stride + (job.kv_head * job.group + row % job.group) * head_dim;
    const float factor = 1.0f / scratch.total[row];
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store(to + d, load<f32v>(scratch.mixed + row * head_dim + d) * factor);
  }
}

// Partial results of a split lie by piece, then kv head, then row.
int64_t partial_row(const Job& job, const Split& split, int64_t piece, int64_t row) {
  return split.partials + ((piece - split.first_piece) * job.cache.num_kv_heads + job.kv_head) * job.num_rows() + row;
}

Row partial(AttentionStep* step, int64_t row) {
  float* mixed = step->partial(row);
  return {mixed, mixed + step->cache->head_dim, mixed + step->cache->head_dim + 1};
}

void leave_partials(const Job& job, const Scratch& scratch, const Split& split, AttentionStep* step) {
  const int64_t head_dim = job.cache.head_dim;
  for (int64_t r = 0; r < job.num_rows(); r++)
    start(partial(step, partial_row(job, split, job.unit.first_piece, r)), scratch.mixed + r * head_dim,
          scratch.top[r], scratch.total[r], head_dim);
}

// Folds the partial results in the order of the pieces, whichever thread has computed them.
void fold_partials(const Job& job, const Scratch& scratch, const Split& split, AttentionStep* step) {
  const int64_t head_dim = job.cache.head_dim;
  for (int64_t r = 0; r < job.num_rows(); r++) {
    const Context context = job.context(r);
    const Row row{scratch.mixed + r * head_dim, scratch.top + r, scratch.total + r};
    for (int64_t piece = first_piece(context); piece * kPiece < context.hi; piece++) {
      const Row part = partial(step, partial_row(job, split, piece, r));
      if (piece == first_piece(context))
        start(row, part.mixed, *part.top, *part.total, head_dim);
      else
        fold(row, part.mixed, *part.top, *part.total, head_dim);
    }
  }
}

}  // namespace

int64_t attend_scratch_floats(int64_t tile_rows, int64_t head_dim) { return Scratch::floats(tile_rows, head_dim); }

void attend(AttentionStep* step, int layer, const float* q, int64_t q_stride, float* out, int64_t out_stride, int tid) {
  const KVCache& cache = *step->cache;
  Plan& plan = step->plan_of(layer);
  const Scratch scratch(step->scratch(tid), step->tile_queries * step->group, cache.head_dim);
  const int64_t num_jobs = int64_t(plan.units.size()) * cache.num_kv_heads;
  const auto job_of = [&](int64_t number) {
    const Unit& unit = plan.units[number / cache.num_kv_heads];
    return Job{cache,       step->sequences[unit.sequence], unit,                        plan.window,
               step->group, layer_of(cache, layer),         number % cache.num_kv_heads};
  };
  std::optional<TileScope> tiles;
  if (kTiles) tiles.emplace();
  // Each thread takes its next job early, so that it can bring what that begins with nearer in time.
  for (int64_t number = step->team->take(), next; number < num_jobs; number = next) {
    next = step->team->take();
    const Job job = job_of(number);
    gather(job, q, q_stride, scratch);
    attend_unit(job, job_of(next < num_jobs ? next : number), scratch, tiles ? &*tiles : nullptr);
    if (job.unit.split >= 0) {
      const Split& split = plan.splits[job.unit.split];
      leave_partials(job, scratch, split, step);
      int32_t* num_finished = &plan.num_finished[job.unit.split * cache.num_kv_heads + job.kv_head];
      // Layers follow each other, so the last of a layer's pieces makes it a multiple.
      if (__atomic_add_fetch(num_finished, 1, __ATOMIC_ACQ_REL) % split.num_pieces != 0) continue;
      fold_partials(job, scratch, split, step);
    }
    scatter(job, scratch, out, out_stride);
  }
}

}  // namespace inflight

using inflight::AttentionStep;
using inflight::Chunk;
using inflight::KVCache;
using inflight::Team;

// The cache's description and the team must live as long as the step. Gives EINVAL for sizes that are not served.
INFLIGHT_EXPORT int inflight_attention_new(const KVCache* cache, Team* team, AttentionStep** step) {
  const bool served = cache->block_size % 16 == 0 && cache->head_dim % 16 == 0 &&
                      cache->head_dim <= inflight::kMostHeadDim && cache->num_heads % cache->num_kv_heads == 0 &&
                      (cache->element_bytes == 2 || cache->element_bytes == 4);
  if (!served) return EINVAL;
  *step = new AttentionStep(cache, team);
  return 0;
}

INFLIGHT_EXPORT void inflight_attention_free(AttentionStep* step) { delete step; }

// Pointers must stay valid until the step has run. block_table: rows of the decodes, table_stride apart.
INFLIGHT_EXPORT void inflight_attention_prepare(AttentionStep* step, int64_t num_tokens, const int64_t* kv_slots,
                                               int64_t num_decodes, const int64_t* block_table, int64_t table_stride,
                                               const int64_t* context_lens, int64_t num_chunks, const Chunk* chunks) {
  step->prepare(num_tokens, kv_slots, num_decodes, block_table, table_stride, context_lens, num_chunks, chunks);
}

// Write the keys and values of a layer, then attend. All float32, [num_tokens][heads][head_dim] without gaps.
INFLIGHT_EXPORT void inflight_attention(AttentionStep* step, int layer, const float* q, const float* k, const float* v,
                                        float* out) {
  const KVCache& cache = *step->cache;
  const int64_t q_stride = cache.num_heads * cache.head_dim, kv_stride = cache.num_kv_heads * cache.head_dim;
  step->team->run([&](int tid) {
    const inflight::Range heads = inflight::share(cache.num_kv_heads, tid, step->team->size());
    for (int64_t token = 0; token < step->num_tokens; token++)
      for (int64_t head = heads.begin; head < heads.end; head++) {
        inflight::write_key(step, layer, token, head, k + token * kv_stride + head * cache.head_dim);
        inflight::write_value(step, layer, token, head, v + token * kv_stride + head * cache.head_dim);
      }
    step->team->barrier();
    inflight::attend(step, layer, q, q_stride, out, q_stride, tid);
  });
}
