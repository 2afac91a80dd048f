#include "lib/engine/cpu/cpu_device.h"

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/threads.h"
#include "lib/engine/host_memory.h"

namespace muster {
namespace {

constexpr size_t kAlignment = 64;

const char* SimdName() {
  switch (kernels::DetectSimdLevel()) {
    case kernels::SimdLevel::kAvx512:
      return "avx512";
    case kernels::SimdLevel::kAvx2:
      return "avx2";
    case kernels::SimdLevel::kBaseline:
      break;
  }
  return "baseline";
}

}  // namespace

std::string CpuDevice::description() const {
  return absl::StrCat(threads_, threads_ == 1 ? " thread, " : " threads, ", SimdName());
}

int64_t CpuDevice::available_bytes() const { return AvailableHostBytes(); }

absl::StatusOr<Device::Memory> CpuDevice::Allocate(size_t bytes, absl::string_view what) {
  const auto release = [](std::byte* p) { std::free(p); };
  // malloc may return memory that the machine cannot provide at the first touch, so the available
  // bytes are checked first. Memory counts as used only after it is touched, so one thread
  // allocates at a time.
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  absl::MutexLock lock(&mu);
  const int64_t available = available_bytes();
  const size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
  auto* memory = bytes > static_cast<size_t>(available)
                     ? nullptr
                     : static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
  if (memory == nullptr) {
    return MemoryExhausted(what, static_cast<int64_t>(bytes), "the machine's memory", available);
  }
  std::memset(memory, 0, padded);
  return Memory(memory, release);
}

void CpuDevice::Drive() const { kernels::SetThreads(threads_); }

}  // namespace muster
