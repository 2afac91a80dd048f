// A fake NCCL for machines without a GPU. It computes nothing, and returns what a test sets.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>

namespace muster {

struct FakeNccl {
  std::atomic<bool> start_hangs = false;  // as if a rank never came
  std::atomic<ncclResult_t> asynchronous{
      ncclSuccess};                          // the asynchronous error of every communicator
  std::array<std::atomic<int>, 2> aborts{};  // number of aborts, by rank
};

}  // namespace muster

// Returns the state of the fake library.
extern "C" muster::FakeNccl* TheFakeNccl();
