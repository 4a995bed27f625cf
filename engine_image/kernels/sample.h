// Choosing tokens from rows of logits. Each row is the work of one thread from beginning to end, so what is chosen does
// not depend on the other rows nor on the number of threads.
#pragma once

#include <cstdint>

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

// How one row is drawn, as in DrawBatch of execution/sampler.py. `number` is uniform in [0, 1).
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

// The place of the greatest of a row, the first of equals; of a NaN, if there is one (as numpy has it).
int64_t argmax(const float* row, int64_t width);

int64_t draw(const float* row, int64_t width, const Draw& how, const DrawScratch& scratch);

// A row's values less the logarithm of the sum of their exponentials. `out` may be the row itself.
void log_softmax(const float* row, int64_t width, float* out);

// Places of the `count` greatest of a row, falling, the first of equals first; count <= width.
void likeliest(const float* row, int64_t width, int64_t count, int64_t* places);

}  // namespace inflight
