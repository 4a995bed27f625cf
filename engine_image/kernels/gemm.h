// Products of activations, float32 rows, with packed weights.
//
// Every element of a result is one sum over the inputs in ascending order, whatever the number of rows, the tiles and
// the threads: a row's result does not depend on the rows beside it, bit for bit.
#pragma once

#include <cstdint>

#include "matrix.h"
#include "team.h"
#include "tiles.h"

namespace inflight {

// Space from a row to the next, in elements of the row: rows that lie a multiple of 4 KiB apart would fight for the same
// lines of the first cache.
inline int64_t padded(int64_t columns) { return (columns + 63) / 64 * 64 + 64; }

// Activations [rows, inputs].
struct Input {
  const float* values;      // for formats that do not round
  int64_t stride;           // in elements
  const uint8_t* rounded;   // for those that do, see `round_row`
  const float* scales;      // [groups, rows]
  const uint32_t* offsets;  // [groups, rows]
  int64_t rows;             // space from a group to the next

  template <class T>
  const T* rounded_row(int64_t i) const {
    return reinterpret_cast<const T*>(rounded) + i * stride;
  }
};

// Round a row to what products with a matrix take.
//
// bfloat16, where the CPU multiplies it faster than float32: to bfloat16.
//
// int8 and int4: to 8 bits by groups, -127 .. 127, zeros after the last, each group with its own scale. `offset` of a
// group is what the products owe to the weights' own: int8 (weights are stored + 128): -128 times the sum of the
// group's integers, an int32; int4 (weights have a minimum): scale times that sum, a float32. Space from a group's scale
// or offset to the next one's is `rows`.
//
// Only the inputs of a range, which begins with a group.
void round_row(const Matrix& m, const float* values, uint8_t* rounded, float* scales, uint32_t* offsets, int64_t rows,
               Range inputs);

// Rows that memory for activations has after the last: tile products read whole tiles.
constexpr int64_t kSpareRows = kTiles ? kTileHeight - 1 : 0;

// Destination of a product.
struct Output {
  enum Kind { kStore, kAdd, kSiluMul } kind;  // kSiluMul: of pairs of registers, silu(first) * second
  float* values;
  int64_t stride;  // in elements
  int64_t columns;
  const float* bias;  // in the order of the panels, as many as they have columns; null: none
  // In place of `values`, not with kAdd: rows of bfloat16, as `round_row` makes them for the next product.
  uint16_t* rounded = nullptr;
};

// out = x * m^T, of some rows and panels, by the calling thread alone.
void multiply(const Matrix& m, const Input& x, Range rows, Range panels, const Output& out);

// A part of a product, as one thread computes it: some rows with some panels.
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
