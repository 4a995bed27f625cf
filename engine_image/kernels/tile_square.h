// Sums of two by two matrix tiles, 32 rows by 32 columns, so that each tile that is loaded is multiplied twice; or of one
// by two, for the last 16 rows. Tiles 0 .. 3 are sums, 4 and 5 the rows' inputs, 6 and 7 the columns'.
//
// HEIGHT: tiles of rows, 1 or 2. Strides are in bytes, from a row to the next.
#pragma once

#include "tiles.h"

namespace inflight {

constexpr int kSquareRows = 2 * kTileHeight;

template <int HEIGHT>
INFLIGHT_INLINE void zero_sums(TileScope& tiles) {
  tiles.zero<0>();
  tiles.zero<1>();
  if constexpr (HEIGHT == 2) {
    tiles.zero<2>();
    tiles.zero<3>();
  }
}

template <int HEIGHT>
INFLIGHT_INLINE void load_sums(TileScope& tiles, const void* sums, int64_t stride) {
  const auto* at = static_cast<const uint8_t*>(sums);
  tiles.load<0>(at, stride);
  tiles.load<1>(at + 64, stride);
  if constexpr (HEIGHT == 2) {
    tiles.load<2>(at + kTileHeight * stride, stride);
    tiles.load<3>(at + kTileHeight * stride + 64, stride);
  }
}

template <int HEIGHT>
INFLIGHT_INLINE void store_sums(TileScope& tiles, void* sums, int64_t stride) {
  auto* at = static_cast<uint8_t*>(sums);
  tiles.store<0>(at, stride);
  tiles.store<1>(at + 64, stride);
  if constexpr (HEIGHT == 2) {
    tiles.store<2>(at + kTileHeight * stride, stride);
    tiles.store<3>(at + kTileHeight * stride + 64, stride);
  }
}

// The inputs of one step: of the rows, and of the first and the second 16 columns.
template <int HEIGHT>
INFLIGHT_INLINE void load_step(TileScope& tiles, const void* rows, int64_t row_stride, const void* first,
                               const void* second, int64_t column_stride) {
  tiles.load<4>(rows, row_stride);
  tiles.load<6>(first, column_stride);
  tiles.load<7>(second, column_stride);
  if constexpr (HEIGHT == 2) tiles.load<5>(static_cast<const uint8_t*>(rows) + kTileHeight * row_stride, row_stride);
}

template <int HEIGHT>
INFLIGHT_INLINE void multiply_bf16(TileScope& tiles) {
  tiles.multiply_bf16<0, 4, 6>();
  tiles.multiply_bf16<1, 4, 7>();
  if constexpr (HEIGHT == 2) {
    tiles.multiply_bf16<2, 5, 6>();
    tiles.multiply_bf16<3, 5, 7>();
  }
}

template <int HEIGHT>
INFLIGHT_INLINE void multiply_int8(TileScope& tiles) {
  tiles.multiply_int8<0, 4, 6>();
  tiles.multiply_int8<1, 4, 7>();
  if constexpr (HEIGHT == 2) {
    tiles.multiply_int8<2, 5, 6>();
    tiles.multiply_int8<3, 5, 7>();
  }
}

}  // namespace inflight
