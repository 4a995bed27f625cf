// A fixed team of threads that run one function together, as an OpenMP parallel region does.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "spinning.h"

namespace inflight {

// A word on which threads wait: they look at it for a short while, then sleep (Linux: futex).
class WaitWord {
 public:
  uint32_t value() const { return word_.load(std::memory_order_acquire); }
  bool wait_while(uint32_t old, int64_t spin_nanoseconds);  // whether it slept
  void advance();  // to the next value; wakes all

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> sleepers_{0};
};

class Team {
 public:
  // The caller of `run` is thread 0; size - 1 threads are started, which may run where the caller may.
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  bool complete() const { return num_started_ == size_ - 1; }

  // Call fn(tid) in every thread, tid 0 .. size - 1, and wait until all have returned. One caller at a time.
  template <class Function>
  void run(const Function& fn) {
    run_erased([](const void* f, int tid) { (*static_cast<const Function*>(f))(tid); }, &fn);
  }

  // Inside `run`: wait until every thread is here. What they wrote before is seen by all after.
  void barrier();

  // Inside `run`: the next number of 0, 1, 2, ... that no thread has taken since the last barrier (or since the start).
  // Which thread takes which piece of work is a matter of luck, so results must not depend on it.
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using Erased = void (*)(const void*, int);
  struct alignas(64) Worker {
    Team* team;
    int tid;
    pthread_t thread;
    int64_t delayed;  // nanoseconds without a core in the last observed run; negative: not known
  };

  void run_erased(Erased call, const void* fn);
  void run_part(Worker* worker);
  void observe(int64_t begin);
  static void* work(void* worker);

  const int size_;
  int num_started_ = 0;
  Worker* workers_;
  Erased call_ = nullptr;
  const void* fn_ = nullptr;
  bool closing_ = false;
  bool observing_ = false;     // the present run
  int64_t last_observed_ = 0;  // when such a run ended
  Spinning spinning_;
  std::atomic<int64_t> spin_nanoseconds_{spinning_.nanoseconds()};
  // Barriers at which a thread slept, since the start of the last observed run, and the last of them: one late thread
  // makes all others sleep.
  std::atomic<int> outlasted_{0};
  std::atomic<uint32_t> outlasted_at_{UINT32_MAX};
  WaitWord start_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) WaitWord passed_;
  alignas(64) std::atomic<int> next_{0};
};

// The part of [0, count) that thread tid of n takes, in whole units of `unit` where that can be: [begin, end).
struct Range {
  int64_t begin, end;
};
inline Range share(int64_t count, int tid, int n, int64_t unit = 1) {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t begin = units * tid / n * unit, end = units * (tid + 1) / n * unit;
  return {begin < count ? begin : count, end < count ? end : count};
}

}  // namespace inflight
