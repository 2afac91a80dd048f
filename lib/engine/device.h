// Where a graph runs. The CPU is a device; GPUs come with the compute-engine issue through the same
// seam.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Owns streams and memory of one device. Thread-compatible: one thread drives a device.
class Device {
 public:
  // "cpu" or "cpu:0". INVALID_ARGUMENT for an unknown kind. `threads`: of the math libraries on a
  // CPU device (>= 1).
  static absl::StatusOr<std::unique_ptr<Device>> Create(absl::string_view name, int threads);
  virtual ~Device() = default;

  virtual std::string name() const = 0;
  virtual bool is_cpu() const = 0;

  // What Allocate() could give now.
  virtual int64_t available_bytes() const = 0;

  // 64-byte aligned, zeroed, for as long as the pointer lives. Null when that much is not
  // available, before any of it is touched. Devices of a process may allocate at the same time:
  // each counts what the others have got.
  using Memory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;
  virtual Memory Allocate(size_t bytes) = 0;

  // Waits for what was enqueued. A no-op on the CPU.
  virtual void Synchronize() = 0;
};

}  // namespace muster
