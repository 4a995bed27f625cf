#include "team.h"

#include <cerrno>
#include <ctime>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "simd.h"
#include "tiles.h"

namespace inflight {

namespace {

// Time between two observations of the threads, which cost some microseconds each.
constexpr int64_t kObserveNanoseconds = 10'000'000;

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

void sleep_while(std::atomic<uint32_t>* word, uint32_t old) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
#else
  timespec moment{0, 50'000};
  nanosleep(&moment, nullptr);
#endif
}

void wake_all(std::atomic<uint32_t>* word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace

bool WaitWord::wait_while(uint32_t old, int64_t spin_nanoseconds) {
  int64_t begin = 0;
  for (int64_t time = 0; time <= begin + spin_nanoseconds;) {
    for (int i = 0; i < 16; i++) {
      if (value() != old) return false;
      spin_pause();
    }
    time = now();
    if (begin == 0) begin = time;
  }
  sleepers_.fetch_add(1);
  while (word_.load() == old) sleep_while(&word_, old);
  sleepers_.fetch_sub(1);
  return true;
}

void WaitWord::advance() {
  word_.fetch_add(1);
  if (sleepers_.load() > 0) wake_all(&word_);
}

Team::Team(int size) : size_(size), workers_(new Worker[size]) {
  for (int tid = 0; tid < size; tid++) workers_[tid] = {this, tid, {}, 0};
  for (int tid = 1; tid < size; tid++) {
    if (pthread_create(&workers_[tid].thread, nullptr, work, &workers_[tid]) != 0) break;
    num_started_++;
  }
}

Team::~Team() {
  closing_ = true;
  start_.advance();
  for (int tid = 1; tid <= num_started_; tid++) pthread_join(workers_[tid].thread, nullptr);
  delete[] workers_;
}

void* Team::work(void* argument) {
  auto* worker = static_cast<Worker*>(argument);
  Team* team = worker->team;
  const FlushDenormals flush;
  for (uint32_t seen = 0;; seen++) {
    team->start_.wait_while(seen, team->spin_nanoseconds_.load(std::memory_order_relaxed));
    if (team->closing_) return nullptr;
    team->run_part(worker);
  }
}

void Team::run_part(Worker* worker) {
  if (!observing_) {
    call_(fn_, worker->tid);
  } else {
    const int64_t before = run_delay();
    call_(fn_, worker->tid);
    worker->delayed = before < 0 ? -1 : run_delay() - before;
  }
  barrier();
}

void Team::run_erased(Erased call, const void* fn) {
  const FlushDenormals flush;
  call_ = call;
  fn_ = fn;
  if (size_ == 1) return run_part(&workers_[0]);
  const int64_t begin = now();
  observing_ = begin > last_observed_ + kObserveNanoseconds;
  if (observing_) {
    outlasted_.store(0, std::memory_order_relaxed);
    spin_nanoseconds_.store(spinning_.nanoseconds(), std::memory_order_relaxed);
  }
  start_.advance();
  run_part(&workers_[0]);
  if (observing_) observe(begin);
}

void Team::observe(int64_t begin) {
  last_observed_ = now();
  int64_t delayed = 0;
  for (int tid = 0; tid < size_ && delayed >= 0; tid++)
    delayed = workers_[tid].delayed < 0 ? -1 : delayed + workers_[tid].delayed;
  spinning_.observe((last_observed_ - begin) * size_, delayed);
}

void Team::barrier() {
  const uint32_t passed = passed_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    passed_.advance();
  } else {
    const int64_t spin = spin_nanoseconds_.load(std::memory_order_relaxed);
    if (passed_.wait_while(passed, spin) && outlasted_at_.exchange(passed) != passed)
      spin_nanoseconds_.store(Spinning::shortened(spin, outlasted_.fetch_add(1) + 1), std::memory_order_relaxed);
  }
}

}  // namespace inflight

using inflight::Team;

// Gives EAGAIN when the threads cannot be started. A team stays until the process ends: its threads sleep when it has
// nothing to do, and whatever computes with it may do so until then.
INFLIGHT_EXPORT int inflight_team_new(int size, Team** team) {
  if (size < 1) return EINVAL;
  auto* made = new Team(size);
  if (!made->complete()) {
    delete made;
    return EAGAIN;
  }
  *team = made;
  return 0;
}
