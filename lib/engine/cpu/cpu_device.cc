#include "lib/engine/cpu/cpu_device.h"

#include <dnnl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

// Returns the value of `field` for the first processor, or "unknown".
std::string CpuInfo(absl::string_view field) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const absl::string_view text = line;
    if (absl::StripAsciiWhitespace(text.substr(0, colon)) != field) continue;
    return absl::StrReplaceAll(absl::StripAsciiWhitespace(text.substr(colon + 1)), {{",", " "}});
  }
  return "unknown";
}

std::string CacheSize(int name) { return absl::StrCat(sysconf(name) >> 10, " KiB"); }

// A hypervisor may name different processors alike, so the text has the model's number, too. oneDNN
// chooses its code by the instruction set, which ONEDNN_MAX_CPU_ISA can limit, and by the caches.
std::string DescribeProcessor() {
  const dnnl_version_t& onednn = *dnnl_version();
  return absl::StrCat(CpuInfo("model name"), ", family ", CpuInfo("cpu family"), " model ",
                      CpuInfo("model"), ", L1 ", CacheSize(_SC_LEVEL1_DCACHE_SIZE), ", L2 ",
                      CacheSize(_SC_LEVEL2_CACHE_SIZE), ", L3 ", CacheSize(_SC_LEVEL3_CACHE_SIZE),
                      ", oneDNN ", onednn.major, ".", onednn.minor, ".", onednn.patch, " isa 0x",
                      absl::Hex(static_cast<int>(dnnl_get_effective_cpu_isa())));
}

}  // namespace

std::string CpuDevice::description() const {
  return absl::StrCat(threads_, threads_ == 1 ? " thread, " : " threads, ", SimdName());
}

std::string CpuDevice::exact_kind() const {
  static const auto& processor = *new std::string(DescribeProcessor());
  return absl::StrCat(description(), ", ", processor);
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
