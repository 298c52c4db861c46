// Work shared between XLA's own threads and the calling one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace jaxfold {

// Runs work(0) .. work(count - 1) on the pool's threads and this one. This thread only ever waits for a task that runs:
// a pool whose threads all wait in calls like this one goes on.
template <typename Work>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  struct State {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers < 1) {
    for (int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  auto state = std::make_shared<State>();
  // A helper that comes too late finds nothing to take and does not touch `work`, which may be gone by then.
  const Work* shared = &work;
  auto help = [state, shared, count] {
    for (int64_t i; (i = state->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      (*shared)(i);
      state->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(help)(help));
  help();
  while (state->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

}  // namespace jaxfold
