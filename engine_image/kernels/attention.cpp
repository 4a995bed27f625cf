#include "attention.h"

#include <algorithm>
#include <cerrno>
#include <optional>

#include "attention_matrix.h"
#include "attention_plan.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "simd.h"
#include "tiles.h"

namespace inflight {

namespace {

static_assert(kPiece % (kTileVectors * kLanes) == 0);

// Rows from which a unit's products are those of tiles. With fewer, tiles would multiply what is not there.
constexpr int64_t kMatrixFrom = 8;

int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Where a thread keeps a unit's rows. Rows that tiles multiply are rounded to bfloat16, and fill whole tiles.
class Scratch {
 public:
  Scratch(float* memory, int64_t tile_rows, int64_t head_dim) : memory_(memory) {
    mixed = take(tile_rows * head_dim);
    queries = take(tile_rows * head_dim);
    piece_mixed = take((kTiles ? kMatrixRows : kMostRows) * head_dim);
    weights = take((kTiles ? kMatrixRows : kMostRows) * kPiece);
    top = take(tile_rows);
    total = take(tile_rows);
    if (!kTiles) return;
    rounded_queries = take_rounded(whole(tile_rows, kMatrixRows) * head_dim);
    rounded_weights = take_rounded(kMatrixRows * kPiece);
    values = take_rounded(kPiece * head_dim);
  }

  static int64_t floats(int64_t tile_rows, int64_t head_dim) {
    return Scratch(nullptr, tile_rows, head_dim).used_;
  }

  float* mixed;        // [tile_rows][head_dim]
  float* queries;      // [tile_rows][head_dim], scaled
  float* piece_mixed;  // [kMostRows or kMatrixRows][head_dim]
  float* weights;      // [kMostRows or kMatrixRows][kPiece]: scores, then their exponentials
  float* top;          // [tile_rows]
  float* total;        // [tile_rows]
  uint16_t* rounded_queries = nullptr;  // [tile_rows][head_dim]
  uint16_t* rounded_weights = nullptr;  // [kMatrixRows][kPiece]
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

// What a unit is about, for one kv head.
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

void find_columns(const Job& job, int64_t piece, Columns* columns) {
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

template <class Element, int ROWS>
void score_rows(const float* queries, const Columns& columns, int64_t begin, int64_t end, float* scores) {
  int64_t column = begin / kLanes;
  const int64_t end_column = (end + kLanes - 1) / kLanes;
  for (; column + kTileVectors <= end_column; column += kTileVectors)
    score_tile<Element, ROWS, kTileVectors>(queries, columns, column, scores);
  for (; column < end_column; column++) score_tile<Element, ROWS, 1>(queries, columns, column, scores);
}

template <class Element, int ROWS>
void value_rows(const float* weights, const Columns& columns, int64_t begin, int64_t end, KeyFetcher* next_keys,
                float* mixed) {
  int64_t d = 0;
  for (; d + kTileVectors * kLanes <= columns.head_dim; d += kTileVectors * kLanes)
    value_tile<Element, ROWS, kTileVectors>(weights, columns, begin, end, d, next_keys, mixed);
  for (; d < columns.head_dim; d += kLanes)
    value_tile<Element, ROWS, 1>(weights, columns, begin, end, d, next_keys, mixed);
}

// The first piece of a row's context: there it begins.
int64_t first_piece(Context context) { return context.lo / kPiece; }

// The tokens of a piece, relative to it, that rows first .. first + count - 1 see; empty: none. Contexts grow with the
// rows: the first row's begins first, the last row's ends last. `begin` is a multiple of kSpan.
Range tokens_seen(const Job& job, int64_t piece, int64_t first, int64_t count) {
  const int64_t base = piece * kPiece;
  return {std::max(job.context(first).lo - base, int64_t(0)) / kSpan * kSpan,
          std::min(job.context(first + count - 1).hi - base, kPiece)};
}

// Of some rows over one piece: the greatest score, the sum of weights, and whether the row sees any of the piece.
template <int ROWS>
struct Weighed {
  float top[ROWS], total[ROWS];
  bool sees[ROWS];
};

// The scores of `tokens`, rows of kPiece, become weights; zeros to the end of the last span.
template <int ROWS>
Weighed<ROWS> weigh(const Job& job, int64_t piece, int64_t first, int count, Range tokens, float* scores) {
  const int64_t base = piece * kPiece, end = whole(tokens.end, kSpan);
  Weighed<ROWS> weighed;
  for (int r = 0; r < count; r++, scores += kPiece) {
    const Context context = job.context(first + r), here{context.lo - base, context.hi - base};
    weighed.sees[r] = here.lo < kPiece && here.hi > 0;
    if (weighed.sees[r])
      softmax(scores, tokens.begin, end, here, job.cache.softcap, &weighed.top[r], &weighed.total[r]);
    else
      std::fill(scores + tokens.begin, scores + end, 0.0f);
  }
  return weighed;
}

// Add the piece to what the rows have of those before.
template <int ROWS>
void add_piece(const Job& job, const Scratch& scratch, int64_t piece, int64_t first, int count,
               const Weighed<ROWS>& weighed) {
  const int64_t head_dim = job.cache.head_dim;
  for (int r = 0; r < count; r++) {
    if (!weighed.sees[r]) continue;
    const int64_t i = first + r;
    const Row row{scratch.mixed + i * head_dim, scratch.top + i, scratch.total + i};
    const float* mixed = scratch.piece_mixed + r * head_dim;
    if (piece == job.unit.first_piece || piece == first_piece(job.context(i)))
      start(row, mixed, weighed.top[r], weighed.total[r], head_dim);
    else
      fold(row, mixed, weighed.top[r], weighed.total[r], head_dim);
  }
}

// Rows first .. first + ROWS - 1 over one piece.
template <class Element, int ROWS>
void attend_rows(const Job& job, const Scratch& scratch, int64_t piece, int64_t first, const Columns& columns,
                 KeyFetcher next_keys) {
  const Range tokens = tokens_seen(job, piece, first, ROWS);
  if (tokens.begin >= tokens.end) return;
  const int64_t head_dim = job.cache.head_dim;
  score_rows<Element, ROWS>(scratch.queries + first * head_dim, columns, tokens.begin, tokens.end, scratch.weights);
  const auto weighed = weigh<ROWS>(job, piece, first, ROWS, tokens, scratch.weights);
  if (Element::kRounds)
    for (int r = 0; r < ROWS; r++)
      for (int64_t i = tokens.begin; i < tokens.end; i += kLanes) round_bf16(scratch.weights + r * kPiece + i);
  value_rows<Element, ROWS>(scratch.weights, columns, tokens.begin, tokens.end, &next_keys, scratch.piece_mixed);
  add_piece(job, scratch, piece, first, ROWS, weighed);
}

// Rows first .. first + count - 1 over one piece, TILES * 16 at most.
template <int TILES>
void attend_tiles(const Job& job, const Scratch& scratch, TileScope* tiles, int64_t piece, int64_t first, int count,
                  const Columns& columns, const ValueSpans& values) {
  const Range tokens = tokens_seen(job, piece, first, count);
  if (tokens.begin >= tokens.end) return;
  const int64_t head_dim = job.cache.head_dim;
  score_matrix<TILES>(tiles, scratch.rounded_queries + first * head_dim, columns, tokens.begin, tokens.end,
                      scratch.weights);
  const auto weighed = weigh<kMatrixRows>(job, piece, first, count, tokens, scratch.weights);
  for (int r = 0; r < count; r++)
    for (int64_t i = tokens.begin; i < whole(tokens.end, kSpan); i += kLanes)
      store_bf16(scratch.rounded_weights + r * kPiece + i, load<f32v>(scratch.weights + r * kPiece + i));
  mix_matrix<TILES>(tiles, scratch.rounded_weights, values, tokens.begin, tokens.end, head_dim, scratch.piece_mixed);
  add_piece(job, scratch, piece, first, count, weighed);
}

template <class Element, int ROWS = 1>
void attend_rows(const Job& job, const Scratch& scratch, int64_t piece, int64_t first, int64_t count,
                 const Columns& columns, const KeyFetcher& next) {
  if constexpr (ROWS <= Element::kMostRows) {
    if (count > ROWS) return attend_rows<Element, ROWS + 1>(job, scratch, piece, first, count, columns, next);
    attend_rows<Element, ROWS>(job, scratch, piece, first, columns, next);
  }
}

bool is_for_tiles(const Job& job) {
  return kTiles && job.cache.element_bytes == 2 && job.cache.head_dim % kTileInputs == 0 &&
         job.num_rows() >= kMatrixFrom;
}

template <class Element>
void attend_piece(const Job& job, const Scratch& scratch, int64_t piece, const Columns& columns,
                  const KeyFetcher& next) {
  const int64_t num_rows = job.num_rows(), num_tiles = (num_rows + Element::kMostRows - 1) / Element::kMostRows;
  for (int64_t tile = 0; tile < num_tiles; tile++) {
    const int64_t first = num_rows * tile / num_tiles, count = num_rows * (tile + 1) / num_tiles - first;
    attend_rows<Element>(job, scratch, piece, first, count, columns, next);
  }
}

void attend_piece_by_tiles(const Job& job, const Scratch& scratch, TileScope* tiles, int64_t piece,
                           const Columns& columns) {
  const int64_t num_rows = job.num_rows();
  const Range seen = tokens_seen(job, piece, 0, num_rows);
  const ValueSpans values = find_value_spans(columns, seen.begin, seen.end, scratch.values);
  for (int64_t first = 0; first < num_rows; first += kMatrixRows) {
    const int count = int(std::min<int64_t>(kMatrixRows, num_rows - first));
    if (count > kTileHeight)
      attend_tiles<2>(job, scratch, tiles, piece, first, count, columns, values);
    else
      attend_tiles<1>(job, scratch, tiles, piece, first, count, columns, values);
  }
}

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

// In the order of the pieces, whoever has computed them.
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

// What is pointed to must stay until the step has run. block_table: of the decodes, table_stride from one to the next.
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
    inflight::write_kv(step, layer, k, v, kv_stride, tid);
    step->team->barrier();
    inflight::attend(step, layer, q, q_stride, out, q_stride, tid);
  });
}
