#include "spinning.h"

#include <cstdlib>

#include "simd.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace inflight {

namespace {

// /proc/thread-self/schedstat: nanoseconds on a core, nanoseconds of waiting for one, times it got one.
class SchedulerStatistics {
 public:
#if defined(__linux__)
  SchedulerStatistics() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~SchedulerStatistics() {
    if (file_ >= 0) close(file_);
  }
  int64_t delay() const {
    char text[96];
    const ssize_t length = file_ < 0 ? -1 : pread(file_, text, sizeof(text) - 1, 0);
    if (length <= 0) return -1;
    text[length] = 0;
    char* second;
    strtoll(text, &second, 10);
    char* end;
    const int64_t nanoseconds = strtoll(second, &end, 10);
    return end == second ? -1 : nanoseconds;
  }

 private:
  const int file_;
#else
  int64_t delay() const { return -1; }
#endif
};

}  // namespace

void Spinning::observe(int64_t computed, int64_t delayed) {
  if (delayed < 0) {
    nanoseconds_ = kUnknown;
    return;
  }
  computed_ += computed;
  delayed_ += delayed;
  if (computed_ < kWindow) return;
  const int64_t percent = 100 * delayed_ / computed_;
  if (percent >= kCrowdedFrom) {
    nanoseconds_ = kCrowded;
  } else if (percent < kAloneBelow || nanoseconds_ == kUnknown) {
    nanoseconds_ = kAlone;
  }
  computed_ = delayed_ = 0;
}

int64_t run_delay() {
  static thread_local const SchedulerStatistics statistics;
  return statistics.delay();
}

}  // namespace inflight

// The nanoseconds of spinning after so many observations, of a team that begins with them, and after so many waits of
// the next run that were longer.
INFLIGHT_EXPORT int64_t inflight_spinning_after(const int64_t* computed, const int64_t* delayed, int64_t count,
                                                int outlasted) {
  inflight::Spinning spinning;
  for (int64_t i = 0; i < count; i++) spinning.observe(computed[i], delayed[i]);
  return inflight::Spinning::shortened(spinning.nanoseconds(), outlasted);
}
