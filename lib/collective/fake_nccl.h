// A fake NCCL for machines without a GPU. It computes nothing, and returns what a test sets.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace muster {

struct FakeNccl {
  std::atomic<bool> start_hangs = false;  // as if a rank never came
  std::atomic<ncclResult_t> asynchronous{
      ncclSuccess};                          // the asynchronous error of every communicator
  std::array<std::atomic<int>, 2> aborts{};  // number of aborts, by rank
  // The arguments of the last operation.
  std::atomic<ncclDataType_t> type{ncclInt8};
  std::atomic<size_t> count = 0;
};

}  // namespace muster

// Returns the state of the fake library.
extern "C" muster::FakeNccl* TheFakeNccl();
