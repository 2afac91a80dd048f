#include "lib/engine/device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "kernels/threads.h"
#include "lib/engine/cpu_device.h"

namespace muster {
namespace {

constexpr size_t kAlignment = 64;

bool NamesCpu(absl::string_view name) {
  if (name == "cpu") return true;
  int index;
  return absl::ConsumePrefix(&name, "cpu:") && absl::SimpleAtoi(name, &index) && index >= 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Create(absl::string_view name, int threads) {
  CHECK_GE(threads, 1);
  if (!NamesCpu(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device '", name, "' is unknown: expected \"cpu\" or \"cpu:0\""));
  }
  return std::make_unique<CpuDevice>(std::string(name), threads);
}

Device::Memory CpuDevice::Allocate(size_t bytes) {
  const auto release = [](std::byte* p) { std::free(p); };
  // Beyond the machine's memory malloc may promise what the first touch cannot keep.
  const size_t machine_bytes = size_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (bytes > machine_bytes) return Memory(nullptr, release);
  const size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
  if (memory != nullptr) std::memset(memory, 0, padded);
  return Memory(memory, release);
}

void CpuDevice::Drive() const { kernels::SetThreads(threads_); }

}  // namespace muster
