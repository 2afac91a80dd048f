// The CPU as a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/engine/device.h"

namespace muster {

class CpuDevice : public Device {
 public:
  CpuDevice(std::string name, int threads) : name_(std::move(name)), threads_(threads) {}

  std::string name() const override { return name_; }
  Kind kind() const override { return Kind::kCpu; }
  std::string description() const override;
  std::string exact_kind() const override;
  int64_t available_bytes() const override;
  absl::StatusOr<Memory> Allocate(size_t bytes, absl::string_view what) override;

  // Makes the calling thread drive this device: the kernels that it runs use the device's number of
  // threads. Cheap.
  void Drive() const;

 private:
  const std::string name_;
  const int threads_;
};

}  // namespace muster
