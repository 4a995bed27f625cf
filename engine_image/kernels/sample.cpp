// Choosing tokens from rows of logits. Each row is the work of one thread from beginning to end, so what is chosen does
// not depend on the other rows nor on the number of threads.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <limits>

#include "simd.h"
#include "team.h"

namespace inflight {

// Some rows of a matrix of float32: row i begins at values + index[i] * stride; index null: row i is the i-th.
struct Rows {
  const float* values;
  int64_t stride;
  const int64_t* index;
  int64_t count;
  int64_t width;

  const float* operator[](int64_t i) const { return values + (index == nullptr ? i : index[i]) * stride; }
};

// How one row is drawn, as in DrawBatch of execution/sampling/draws.py. `number` is uniform in [0, 1).
struct Draw {
  double temperature;
  double min_p;
  int64_t top_k;
  double top_p;
  double number;
};

// Memory of a thread that draws from rows of `width`. `memory` has bytes(width) bytes, aligned to a cache line.
class DrawScratch {
 public:
  static constexpr int kBlock = 512;    // weights that are summed together
  static constexpr int kMaxBlock = 64;  // logits of which the greatest is noted

  static int64_t bytes(int64_t width);
  DrawScratch(char* memory, int64_t width);

  // All have room for whole blocks.
  double* weights;        // [width], padded with zeros
  double* likely;         // [width], padded with zeros: weights of the likely tokens
  double* sums;           // [number of blocks]: of weights
  float* maxima;          // [number of blocks of kMaxBlock]: of logits
  float* copy_of_maxima;  // as many
  int32_t* tokens;        // [width]: the likely tokens
  int32_t* members;       // [width]: places among them
};

namespace {

constexpr int kDoubles = kLanes / 2;  // a register's
typedef double f64v __attribute__((vector_size(8 * kDoubles)));
typedef int64_t i64v __attribute__((vector_size(8 * kDoubles)));
typedef float f32h __attribute__((vector_size(4 * kDoubles)));  // as many lanes, half as wide

constexpr float kInfinity = std::numeric_limits<float>::infinity();

INFLIGHT_INLINE f64v splat64(double x) { return f64v{} + x; }

// e^x for x <= 0, to a unit or two in the last place; 0 where the result would be denormal.
INFLIGHT_INLINE f64v exp64(f64v x) {
  const f64v magic = splat64(6755399441055744.0);  // 1.5 * 2^52: a sum's last bits are the integer
  const f64v clamped = x < -708.0 ? splat64(-708.0) : x;
  const f64v shifted = clamped * 1.4426950408889634074 + magic;
  const f64v n = shifted - magic;
  f64v r = n * -6.93147180369123816490e-01 + clamped;  // ln 2 in two parts (Cody and Waite)
  r = n * -1.90821492927058770002e-10 + r;
  // Taylor's series: |r| <= 0.3466, so what is left out is below 2^-57.
  f64v p = splat64(1.0 / 6227020800);
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const f64v scale = (f64v)(((i64v)shifted - (i64v)magic + 1023) << 52);
  return x < -708.0 ? f64v{} : p * scale;
}

INFLIGHT_INLINE int64_t bits(double x) {
  int64_t number;
  memcpy(&number, &x, 8);
  return number;
}

INFLIGHT_INLINE double from_bits(int64_t number) {
  double x;
  memcpy(&x, &number, 8);
  return x;
}

INFLIGHT_INLINE double reduce_add64(f64v x) {
  double lane[kDoubles];
  store(lane, x);
  for (int half = kDoubles / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
  return lane[0];
}

// The greatest of a row, or NaN if there is one; into `maxima`, where given, the greatest of each block of kBlock.
template <int kBlock>
float greatest(const float* row, int64_t width, float* maxima) {
  float found = -kInfinity;
  i32v nan{};
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    float most = -kInfinity;
    if (begin + kBlock <= width) {
      // Four at once, as each comparison waits for the one before.
      f32v four[4];
      for (int i = 0; i < 4; i++) four[i] = f32v{} - kInfinity;
      for (int64_t i = begin; i < begin + kBlock; i += 4 * kLanes)
        for (int part = 0; part < 4; part++) {
          const f32v x = load<f32v>(row + i + part * kLanes);
          four[part] = max(x, four[part]);
          nan |= x != x;
        }
      most = reduce_max(max(max(four[0], four[1]), max(four[2], four[3])));
    } else {
      f32v last = f32v{} - kInfinity;
      int64_t i = begin;
      for (; i + kLanes <= width; i += kLanes) {
        const f32v x = load<f32v>(row + i);
        last = max(x, last);
        nan |= x != x;
      }
      most = reduce_max(last);
      for (; i < width; i++) {
        most = row[i] > most ? row[i] : most;
        nan[0] |= row[i] != row[i];
      }
    }
    if (maxima != nullptr) maxima[begin / kBlock] = most;
    found = most > found ? most : found;
  }
  for (int lane = 0; lane < kLanes; lane++)
    if (nan[lane] != 0) return std::numeric_limits<float>::quiet_NaN();
  return found;
}

int64_t place_of(float value, const float* row, int64_t width) {
  constexpr int kStride = 256;
  int64_t from = 0;
  for (; from + kStride <= width; from += kStride) {
    int found = 0;  // without a branch, so that the compiler makes vectors of it
    for (int i = 0; i < kStride; i++) found |= row[from + i] == value;
    if (found) break;
  }
  for (; from < width; from++)
    if (row[from] == value) return from;
  return 0;
}

// weights[i] = e^((row[i] - most) / temperature), 0 where that is less than min_p.
void weigh(const float* row, int64_t width, float most, const Draw& how, const DrawScratch& scratch) {
  const f64v offset = splat64(double(most)), temperature = splat64(how.temperature), min_p = splat64(how.min_p);
  for (int64_t block = 0; block * DrawScratch::kBlock < width; block++) {
    const int64_t begin = block * DrawScratch::kBlock;
    f64v sum{};
    for (int64_t i = begin; i < begin + DrawScratch::kBlock; i += kDoubles) {
      f32h x;
      if (i + kDoubles <= width) {
        x = load<f32h>(row + i);
      } else {
        x = f32h{} - kInfinity;
        for (int lane = 0; i + lane < width; lane++) x[lane] = row[i + lane];
      }
      f64v weight = exp64((__builtin_convertvector(x, f64v) - offset) / temperature);
      weight = weight >= min_p ? weight : f64v{};
      store(scratch.weights + i, weight);
      sum += weight;
    }
    scratch.sums[block] = reduce_add64(sum);
  }
}

double total(int64_t width, const DrawScratch& scratch) {
  double sum = 0;
  for (int64_t block = 0; block * DrawScratch::kBlock < width; block++) sum += scratch.sums[block];
  return sum;
}

// A logit below which no token is kept; it may be far too low.
float lower_bound(int64_t width, float most, const Draw& how, const DrawScratch& scratch) {
  if (how.top_k > 0 && how.top_k < width) {
    const int64_t blocks = (width + DrawScratch::kMaxBlock - 1) / DrawScratch::kMaxBlock;
    if (how.top_k > blocks) return -kInfinity;
    // top_k blocks hold a token that is at least as likely as the most likely one of this block.
    float* maxima = scratch.copy_of_maxima;
    std::copy_n(scratch.maxima, blocks, maxima);
    std::nth_element(maxima, maxima + how.top_k - 1, maxima + blocks, [](float a, float b) { return a > b; });
    return maxima[how.top_k - 1];
  }
  // All tokens with less than this weight together do not have what top_p leaves out.
  const double weight = (1 - how.top_p) * total(width, scratch) / double(width);
  const double bound = double(most) + how.temperature * std::log(weight);
  return float(bound - 1e-5 * (std::fabs(bound) + std::fabs(double(most))));  // rounding must not raise it
}

// The tokens that are at least so likely, in order, into scratch.tokens, their weights into scratch.likely: how many.
int64_t find_likely(const float* row, int64_t width, float bound, const DrawScratch& scratch) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < width; begin += DrawScratch::kMaxBlock) {
    if (scratch.maxima[begin / DrawScratch::kMaxBlock] < bound) continue;
    for (int64_t i = begin, end = std::min<int64_t>(begin + DrawScratch::kMaxBlock, width); i < end; i++) {
      scratch.tokens[count] = int32_t(i);
      scratch.likely[count] = scratch.weights[i];
      count += row[i] >= bound;
    }
  }
  for (int64_t i = count; i % DrawScratch::kBlock != 0; i++) scratch.likely[i] = 0;
  return count;
}

struct Part {
  int64_t count;
  double mass;
};

// The likely tokens with at least this weight.
Part at_least(double weight, int64_t count, const DrawScratch& scratch) {
  i64v taken[2] = {};
  f64v mass[2] = {};
  for (int64_t i = 0; i < count; i += 2 * kDoubles) {
    for (int part = 0; part < 2; part++) {
      const f64v x = load<f64v>(scratch.likely + i + part * kDoubles);
      taken[part] -= x >= weight;
      mass[part] += x >= weight ? x : f64v{};
    }
  }
  taken[0] += taken[1];
  int64_t sum = 0;
  for (int lane = 0; lane < kDoubles; lane++) sum += taken[0][lane];
  return {sum, reduce_add64(mass[0] + mass[1])};
}

// The first likely tokens, by weight and among equals by id, until there are `count` of them or they weigh `mass`: all
// that are heavier than `least`, and those of this weight up to the `last`-th.
struct Cut {
  double least;
  int64_t last;
  double mass;
};

Cut cut(int64_t num_likely, int64_t count, double mass, const DrawScratch& scratch) {
  // Bisection over the bits of weights, which are ordered as weights are: at `high` too few, at `low` enough.
  int64_t low = 0, high = bits(2.0), at_low = num_likely;
  Part taken{0, 0};
  while (at_low - taken.count > 64 && high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const Part part = at_least(from_bits(middle), num_likely, scratch);
    if (part.count >= count || part.mass >= mass) {
      low = middle;
      at_low = part.count;
    } else {
      high = middle;
      taken = part;
    }
  }
  const double from = from_bits(low), to = from_bits(high);
  const double* likely = scratch.likely;
  int64_t members = 0;
  constexpr int kStride = 64;
  for (int64_t begin = 0; begin < num_likely; begin += kStride) {
    int found = 0;  // without a branch, so that the compiler makes vectors of it; what pads the end is 0
    for (int i = 0; i < kStride; i++) found |= int(likely[begin + i] >= from) & int(likely[begin + i] < to);
    if (!found) continue;
    for (int64_t i = begin, end = std::min(begin + kStride, num_likely); i < end; i++)
      if (likely[i] >= from && likely[i] < to) scratch.members[members++] = int32_t(i);
  }
  std::sort(scratch.members, scratch.members + members,
            [likely](int32_t a, int32_t b) { return likely[a] > likely[b] || (likely[a] == likely[b] && a < b); });
  Cut found{to, num_likely, taken.mass};
  for (int64_t i = 0; i < members && taken.count + i < count && found.mass < mass; i++) {
    found.last = scratch.members[i];
    found.least = likely[found.last];
    found.mass += found.least;
  }
  return found;
}

// Leave only the likeliest tokens, by top_k first, then by top_p of what that left: in order in scratch.tokens, with
// their weights and sums in place of all tokens'. How many.
int64_t keep_likeliest(const float* row, int64_t width, float most, const Draw& how, const DrawScratch& scratch) {
  const double infinity = std::numeric_limits<double>::infinity();
  const int64_t num_likely = find_likely(row, width, lower_bound(width, most, how, scratch), scratch);
  const bool some = how.top_k > 0 && how.top_k < width;
  const int64_t count = some ? how.top_k : width + 1;
  Cut kept_up_to{0, num_likely, total(width, scratch)};
  if (some) kept_up_to = cut(num_likely, count, infinity, scratch);
  if (how.top_p < 1) kept_up_to = cut(num_likely, count, how.top_p * kept_up_to.mass, scratch);
  const double least = kept_up_to.least;
  int64_t kept = 0;
  for (int64_t i = 0; i < num_likely; i++) {
    const double weight = scratch.likely[i];
    scratch.weights[kept] = weight;
    scratch.tokens[kept] = scratch.tokens[i];
    // No branch: it could not be predicted.
    kept += int(weight > least) | (int(weight == least) & int(i <= kept_up_to.last));
  }
  int64_t padded = kept;
  while (padded % DrawScratch::kBlock != 0) scratch.weights[padded++] = 0;
  for (int64_t begin = 0; begin < padded; begin += DrawScratch::kBlock) {
    f64v sum{};
    for (int i = 0; i < DrawScratch::kBlock; i += kDoubles) sum += load<f64v>(scratch.weights + begin + i);
    scratch.sums[begin / DrawScratch::kBlock] = reduce_add64(sum);
  }
  return kept;
}

// The token in whose part of the cumulative distribution over token ids `number` of the whole lies.
int64_t invert(int64_t width, double number, const DrawScratch& scratch) {
  const double whole = total(width, scratch);
  // Rounding must not push the target to the total: behind it there is no token.
  const double target = std::min(number * whole, std::nextafter(whole, 0.0));
  int64_t block = 0;
  double before = 0;
  for (; (block + 1) * DrawScratch::kBlock < width && before + scratch.sums[block] <= target; block++)
    before += scratch.sums[block];
  const int64_t begin = block * DrawScratch::kBlock, end = std::min<int64_t>(begin + DrawScratch::kBlock, width);
  int64_t token = begin;
  for (int64_t i = begin; i < end; i++) {
    if (scratch.weights[i] == 0) continue;
    token = i;
    before += scratch.weights[i];
    if (before > target) break;  // else, as sums are rounded, it is the block's last that has a weight
  }
  return token;
}

}  // namespace

int64_t DrawScratch::bytes(int64_t width) {
  const int64_t blocks = (width + kBlock - 1) / kBlock, padded = blocks * kBlock;
  const int64_t used = 8 * (2 * padded + blocks) + 4 * (2 * padded / kMaxBlock + 2 * padded);
  return (used + kCacheLine - 1) / kCacheLine * kCacheLine;
}

DrawScratch::DrawScratch(char* memory, int64_t width) {
  const int64_t blocks = (width + kBlock - 1) / kBlock, padded = blocks * kBlock;
  weights = reinterpret_cast<double*>(memory);
  likely = weights + padded;
  sums = likely + padded;
  maxima = reinterpret_cast<float*>(sums + blocks);
  copy_of_maxima = maxima + padded / kMaxBlock;
  tokens = reinterpret_cast<int32_t*>(copy_of_maxima + padded / kMaxBlock);
  members = tokens + padded;
}

// The place of the greatest of a row, the first of equals; of a NaN, if there is one (as numpy has it).
int64_t argmax(const float* row, int64_t width) {
  const float most = greatest<1024>(row, width, nullptr);
  if (most == most) return place_of(most, row, width);
  int64_t i = 0;
  while (row[i] == row[i]) i++;
  return i;
}

int64_t draw(const float* row, int64_t width, const Draw& how, const DrawScratch& scratch) {
  const float most = greatest<DrawScratch::kMaxBlock>(row, width, scratch.maxima);
  // No distribution is in a row without a greatest finite logit; a broken model must not lead to an invalid token.
  if (!std::isfinite(most)) return argmax(row, width);
  weigh(row, width, most, how, scratch);
  if ((how.top_k <= 0 || how.top_k >= width) && how.top_p >= 1) return invert(width, how.number, scratch);
  const int64_t kept = keep_likeliest(row, width, most, how, scratch);
  return scratch.tokens[invert(kept, how.number, scratch)];
}

// A row's values less the logarithm of the sum of their exponentials. `out` may be the row itself.
void log_softmax(const float* row, int64_t width, float* out) {
  const float most = greatest<1024>(row, width, nullptr);
  double sum = 0;
  int64_t i = 0;
  while (i + kLanes <= width) {
    // Float32 sums of a few hundred, which are added in float64: a sum over a whole vocabulary keeps its last bits.
    const int64_t end = std::min(width - kLanes, i + 16 * kLanes);
    f32v part{};
    for (; i <= end; i += kLanes) part += inflight::exp(load<f32v>(row + i) - most);
    sum += double(reduce_add(part));
  }
  for (; i < width; i++) sum += std::exp(double(row[i] - most));
  const float logarithm = float(std::log(sum));
  for (i = 0; i < width; i++) out[i] = row[i] - most - logarithm;
}

// Places of the `count` greatest of a row, falling, the first of equals first; count <= width.
void likeliest(const float* row, int64_t width, int64_t count, int64_t* places) {
  // A heap whose top is the worst that is kept. Later places only come in by a greater value, never by an equal one.
  const auto better = [row](int64_t a, int64_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); };
  for (int64_t i = 0; i < count; i++) places[i] = i;
  std::make_heap(places, places + count, better);
  constexpr int kStride = 16 * kLanes;
  for (int64_t from = count; from < width && count > 0; from += kStride) {
    const int64_t end = std::min(from + kStride, width);
    if (end - from == kStride) {
      f32v most = load<f32v>(row + from);
      for (int i = kLanes; i < kStride; i += kLanes) most = max(most, load<f32v>(row + from + i));
      if (!(reduce_max(most) > row[places[0]])) continue;
    }
    for (int64_t i = from; i < end; i++) {
      if (!(row[i] > row[places[0]])) continue;
      std::pop_heap(places, places + count, better);
      places[count - 1] = i;
      std::push_heap(places, places + count, better);
    }
  }
  std::sort_heap(places, places + count, better);
}

}  // namespace inflight

using inflight::Draw;
using inflight::DrawScratch;
using inflight::Rows;
using inflight::Team;

namespace {

// Numbers that one thread compares while others would still wake up: some tens of microseconds' worth.
constexpr int64_t kAlone = 1 << 18;
// Approximate cost of a number in comparisons: an exponential in float32, and in float64.
constexpr int64_t kExponential = 4, kDraw = 16;

// work(row, thread) for each row. The team is not woken for one row, nor for what the caller has done by itself before
// they would be awake. `cost`: of a number, in comparisons.
template <class Work>
void each_row(Team* team, const Rows* rows, int64_t cost, const Work& work) {
  if (rows->count == 1 || rows->count * rows->width < kAlone / cost) {
    for (int64_t i = 0; i < rows->count; i++) work(i, 0);
    return;
  }
  team->run([&](int tid) {
    for (int64_t i; (i = team->take()) < rows->count;) work(i, tid);
  });
}

}  // namespace

INFLIGHT_EXPORT int inflight_argmax(Team* team, const Rows* rows, int64_t* tokens) {
  if (rows->width < 1) return EINVAL;
  each_row(team, rows, 1, [&](int64_t i, int) { tokens[i] = inflight::argmax((*rows)[i], rows->width); });
  return 0;
}

// Bytes of scratch memory that a team needs to draw.
INFLIGHT_EXPORT int64_t inflight_draw_scratch(const Team* team, int64_t width) {
  return team->size() * DrawScratch::bytes(width);
}

// how: one for each row. scratch: inflight_draw_scratch bytes, aligned to a cache line.
INFLIGHT_EXPORT int inflight_draw(Team* team, const Rows* rows, const Draw* how, char* scratch, int64_t* tokens) {
  if (rows->width < 1 || rows->width > INT32_MAX) return EINVAL;
  each_row(team, rows, kDraw, [&](int64_t i, int tid) {
    const DrawScratch own(scratch + tid * DrawScratch::bytes(rows->width), rows->width);
    tokens[i] = inflight::draw((*rows)[i], rows->width, how[i], own);
  });
  return 0;
}

// out: [count, width].
INFLIGHT_EXPORT int inflight_log_softmax(Team* team, const Rows* rows, float* out) {
  if (rows->width < 1) return EINVAL;
  each_row(team, rows, kExponential,
           [&](int64_t i, int) { inflight::log_softmax((*rows)[i], rows->width, out + i * rows->width); });
  return 0;
}

// places: [rows->count, count].
INFLIGHT_EXPORT int inflight_likeliest(Team* team, const Rows* rows, int64_t count, int64_t* places) {
  if (count < 0 || count > rows->width) return EINVAL;
  each_row(team, rows, 1,
           [&](int64_t i, int) { inflight::likeliest((*rows)[i], rows->width, count, places + i * count); });
  return 0;
}
