// A device that runs graphs: the CPU, or one GPU.
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

// Owns the streams and library handles of one device, and allocates host memory for it.
// Thread-compatible: one thread drives a device.
class Device {
 public:
  enum class Kind { kCpu, kCuda };

  virtual ~Device() = default;

  virtual std::string name() const = 0;
  virtual Kind kind() const = 0;
  bool is_cpu() const { return kind() == Kind::kCpu; }

  // A description for logs and benchmarks: "NVIDIA H200, sm_90, 139 GiB", "2 threads, avx512".
  virtual std::string description() const = 0;

  // Returns all that the bits of the device's results depend on: description(), processor, caches
  // and libraries, as words with ", " between them. Devices with the same text compute the same
  // bits. At most about 200 bytes.
  virtual std::string exact_kind() const = 0;

  // Returns the bytes that activations can get now: of the machine's memory if the device is the
  // CPU, of the GPU's memory if it is a GPU.
  virtual int64_t available_bytes() const = 0;

  using Memory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

  // Allocates host memory that the device reads and writes fast (page-locked for a GPU), for
  // parameters and gradients. The memory is 64-byte aligned, zeroed and never null. It may outlive
  // the device.
  //
  // Returns RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if `bytes` are not available, before
  // touching any memory. The message begins with `what` ("activations of 8 samples") and has the
  // number of bytes. Devices of one process may allocate at the same time: each counts the memory
  // that the others have allocated.
  virtual absl::StatusOr<Memory> Allocate(size_t bytes, absl::string_view what) = 0;

  // Makes existing host memory as fast for the device as Allocate()'s, until the handle is
  // destroyed. Requires: the memory outlives the handle. Returns null on the CPU, where all memory
  // is equally fast. An error leaves the memory as it was.
  virtual absl::StatusOr<std::shared_ptr<void>> PageLock(absl::Span<std::byte>) { return nullptr; }

  // Makes this device the calling thread's current GPU, for libraries that need that. A no-op on
  // the CPU. Returns INTERNAL, reason "DEVICE_LOST", if the process has lost the GPU (see
  // Executor::Run).
  virtual absl::Status Use() const { return absl::OkStatus(); }

  // Keeps the calling thread on the processors next to the device, so that memory that it touches
  // first lies next to the device. Gives the device's collective operations priority over its
  // computation. A no-op on the CPU. Returns an error if one of the two is not possible; the device
  // works without them. Call it before executors exist.
  virtual absl::Status PlaceNearby() { return absl::OkStatus(); }
};

}  // namespace muster
