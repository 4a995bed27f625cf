// How long the threads of a team look for each other before they sleep.
//
// While each thread has a core, the next piece of work is microseconds away and a sleep costs more than that, in a
// virtual machine many times more. While others compute on the same cores, a thread that spins takes the time that the
// one it waits for needs. A late thread alone does not tell the two apart: a hypervisor's pause looks the same. The
// kernel mostly does: it counts the time in which a thread could have run while something else had its core. What it
// does not count shows in the waits themselves: a hypervisor's pause outlasts one, a missing core one after the other.
#pragma once

#include <cstdint>

namespace inflight {

class Spinning {
 public:
  // `computed`: nanoseconds of the team's threads at work, all together; `delayed`: in how many of these a thread waited
  // for a core, negative: not known.
  void observe(int64_t computed, int64_t delayed);
  int64_t nanoseconds() const { return nanoseconds_; }
  // How long to spin in a run that began with `nanoseconds`, after waits at `outlasted` barriers that were longer.
  static int64_t shortened(int64_t nanoseconds, int outlasted) {
    return outlasted < kNotNoise || nanoseconds < kUnknown ? nanoseconds : kUnknown;
  }

 private:
  int64_t computed_ = 0, delayed_ = 0;
  int64_t nanoseconds_ = kUnknown;

  static constexpr int64_t kUnknown = 50'000;     // what costs little with and without others
  static constexpr int64_t kAlone = 2'000'000;    // longer than a hypervisor's noise; an idle team is asleep soon enough
  static constexpr int64_t kCrowded = 2'000;      // who gives a core up early gets it back early
  static constexpr int64_t kWindow = 200'000'000;  // observed before each decision
  static constexpr int kNotNoise = 2;              // pauses of kAlone in a run: a step of decoding has 150 waits
  // Shares of the observed time, in percent. In between it stays as it was.
  static constexpr int64_t kCrowdedFrom = 10, kAloneBelow = 5;
};

// Nanoseconds in which the calling thread has waited for a core since it began; -1: the kernel does not say.
int64_t run_delay();

}  // namespace inflight
