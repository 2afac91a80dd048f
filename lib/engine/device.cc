#include "lib/engine/device.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "kernels/threads.h"
#include "lib/engine/cpu_device.h"
#include "lib/engine/host_memory.h"

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

int64_t CpuDevice::available_bytes() const { return AvailableHostBytes(); }

Device::Memory CpuDevice::Allocate(size_t bytes) {
  const auto release = [](std::byte* p) { std::free(p); };
  // malloc may promise what the first touch cannot keep. Memory counts as taken once it is touched,
  // hence one at a time.
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  absl::MutexLock lock(&mu);
  if (bytes > static_cast<size_t>(available_bytes())) return Memory(nullptr, release);
  const size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
  if (memory != nullptr) std::memset(memory, 0, padded);
  return Memory(memory, release);
}

void CpuDevice::Drive() const { kernels::SetThreads(threads_); }

}  // namespace muster
