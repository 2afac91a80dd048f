// A library in NCCL's place that does nothing but say what it is told to, for machines without a
// GPU.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>

namespace muster {

struct FakeNccl {
  std::atomic<bool> start_hangs = false;                // as when a rank never comes
  std::atomic<ncclResult_t> asynchronous{ncclSuccess};  // of every communicator
  std::array<std::atomic<int>, 2> aborts{};             // by rank
};

}  // namespace muster

// The state that the library keeps.
extern "C" muster::FakeNccl* TheFakeNccl();
