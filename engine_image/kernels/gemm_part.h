// A part of a product, as one thread computes it: some rows with some panels.
#pragma once

#include "gemm.h"

namespace inflight {

struct ProductPart {
  const Matrix& m;
  const Input& x;
  const Output& out;
  int64_t row;  // the first
  int rows;
  int64_t begin, end;  // panels
};

// Rows that are multiplied with one panel after the other while they stay in the second cache.
constexpr int kVectorBlockRows = kRegisters == 32 ? 96 : 40;
constexpr int kTileBlockRows = 256;

// Fewer rows are a matter of memory or leave tiles nearly empty: with at most so many, vectors are as fast.
constexpr int64_t kVectorRows = 4;

inline bool by_tiles(const Matrix& m, int64_t rows) {
  return kTiles && rows > kVectorRows && (m.format == Format::bfloat16 || m.format == Format::int8);
}

// At most kVectorBlockRows; bfloat16, where `kTiles`, at most kVectorRows.
void multiply_by_vectors(const ProductPart& part);
// At most kTileBlockRows, of bfloat16 or int8, where `kTiles`: the same bits as by vectors.
void multiply_by_tiles(const ProductPart& part);

}  // namespace inflight
