// Where a graph runs: the CPU, or one GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// Owns streams, libraries' handles and host memory of one device. Thread-compatible: one thread
// drives a device.
class Device {
 public:
  enum class Kind { kCpu, kCuda };

  virtual ~Device() = default;

  virtual std::string name() const = 0;
  virtual Kind kind() const = 0;
  bool is_cpu() const { return kind() == Kind::kCpu; }

  // For logs and benchmarks: "NVIDIA H200, sm_90, 139 GiB", "2 threads, avx512".
  virtual std::string description() const = 0;

  // What activations could get now: on a CPU device the machine's memory, on a GPU its own.
  virtual int64_t available_bytes() const = 0;

  // Host memory that the device reads and writes fast (page-locked for a GPU): for parameters and
  // gradients. 64-byte aligned, zeroed, for as long as the pointer lives, which may be longer than
  // the device; never null. RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when that much is not
  // available, before any of it is touched; the message begins with `what` ("activations of 8
  // samples") and has the bytes. Devices of a process may allocate at the same time: each counts
  // what the others have got.
  using Memory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;
  virtual absl::StatusOr<Memory> Allocate(size_t bytes, absl::string_view what) = 0;

  // Makes host memory of somebody else's as fast for the device as Allocate()'s, until the handle
  // goes, which is before the memory does. Null on the CPU, for which all memory is. An error
  // leaves it as it was.
  virtual absl::StatusOr<std::shared_ptr<void>> PageLock(absl::Span<std::byte>) { return nullptr; }

  // Makes it the calling thread's current GPU, for libraries that ask for that. A no-op on the CPU.
  // INTERNAL, reason "DEVICE_LOST", when the process has lost the GPU (see Executor::Run).
  virtual absl::Status Use() const { return absl::OkStatus(); }
};

}  // namespace muster
