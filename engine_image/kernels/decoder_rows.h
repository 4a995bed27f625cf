// The activations of a decoder's step, and how its threads divide the rows.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "attention.h"
#include "gemm.h"
#include "matrix.h"
#include "team.h"

namespace inflight {

// With at most so many rows each thread makes the inputs of its products itself, all of them: that takes less time than
// to share the work and wait for the others.
constexpr int64_t kFewRows = 64;
// With so many rows for each thread, threads divide the rows rather than the products, and each takes at most
// kRowsAtOnce: so many rows' activations stay in the second cache.
constexpr int64_t kManyRows = 96;
constexpr int64_t kRowsAtOnce = kTiles ? 256 : 96;

// Memory for the activations of a step, kept for the next one.
class Workspace {
 public:
  ~Workspace() { release(); }

  // Counts the memory that `layout` takes, then hands it out.
  template <class Layout>
  int reserve(const Layout& layout) {
    begin_ = 0;
    used_ = 0;
    layout();
    if (used_ > capacity_) {
      release();
      memory_ = static_cast<uint8_t*>(inflight_allocate(used_));
      if (memory_ == nullptr) return ENOMEM;
      capacity_ = used_;
    }
    begin_ = reinterpret_cast<uintptr_t>(memory_);
    used_ = 0;
    layout();
    return 0;
  }

  template <class T>
  T* take(int64_t count) {
    T* at = reinterpret_cast<T*>(begin_ + used_);
    used_ += (count * int64_t(sizeof(T)) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return at;
  }

 private:
  void release() {
    if (memory_ != nullptr) inflight_release(memory_, capacity_);
    memory_ = nullptr;
    capacity_ = 0;
  }

  uint8_t* memory_ = nullptr;
  uintptr_t begin_ = 0;
  int64_t capacity_ = 0, used_ = 0;
};

// Float32 rows.
struct Rows {
  float* values;
  int64_t stride;

  float* operator[](int64_t i) const { return values + i * stride; }

  void take(Workspace* workspace, int64_t count, int64_t columns) {
    stride = padded(columns);
    values = workspace->take<float>(count * stride);
  }
};

// Rows that products with `m` take, and others of its format and inputs: rounded, or float32.
struct InputRows {
  Rows exact;  // not rounded
  uint8_t* rounded;
  float* scales;
  uint32_t* offsets;
  int64_t count;

  void take(Workspace* workspace, const Matrix& m, int64_t num_rows) {
    count = num_rows;
    if (!m.rounds()) return exact.take(workspace, count, m.inputs);
    exact = {nullptr, padded(m.padded_inputs())};
    rounded = workspace->take<uint8_t>((count + kSpareRows) * exact.stride * m.rounded_bytes());
    scales = workspace->take<float>(count * m.num_groups());
    offsets = workspace->take<uint32_t>(count * m.num_groups());
  }

  void round(const Matrix& m, int64_t i, const float* row, Range inputs) const {
    round_row(m, row, rounded + i * exact.stride * m.rounded_bytes(), scales + i, offsets + i, count, inputs);
  }

  Input input() const { return {exact.values, exact.stride, rounded, scales, offsets, count}; }
};

// How the threads divide the work on some rows between two attentions.
//
// Few rows: every thread computes a share of each product's columns, for all rows, and waits for the others after each.
// Many rows: every thread takes blocks of rows through all products and waits for no other thread.
struct Division {
  Division(int64_t count, int num_threads)
      : count(count), by_rows(num_threads == 1 || count >= kManyRows * num_threads) {
    const int64_t round = num_threads * kRowsAtOnce;
    num_blocks = by_rows && count > 0 ? int((count + round - 1) / round * num_threads) : 1;
    most_rows = by_rows ? ((count + kUnit - 1) / kUnit + num_blocks - 1) / num_blocks * kUnit + 1 : count;
  }

  // Two tokens that share lanes of the KV cache go into one block.
  Range block(int i, const AttentionStep* step) const {
    Range rows = share(count, i, num_blocks, kUnit);
    if (rows.begin < count && shares_lanes(step, rows.begin)) rows.begin++;
    if (rows.end < count && shares_lanes(step, rows.end)) rows.end++;
    return rows;
  }
  bool shares_inputs() const { return !by_rows && count > kFewRows; }

  static constexpr int64_t kUnit = 16;
  int64_t count;
  bool by_rows;
  int num_blocks;
  int64_t most_rows;  // of a block
};

// A thread's part: some columns of all rows, or all columns of some rows.
struct Part {
  const Division& division;
  Range rows;
  int tid, num_threads;

  bool alone() const { return division.by_rows; }
  int64_t count() const { return rows.end - rows.begin; }
  // Panels of a product for this thread; `unit` panels stay together.
  Range panels(const Matrix& m, int64_t unit = 1) const {
    return alone() ? Range{0, m.num_panels()} : share(m.num_panels(), tid, num_threads, unit);
  }
};

}  // namespace inflight
