#include "lib/telemetry/gpu_metrics.h"

#include <dlfcn.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace muster {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// The parts of nvml.h in use. Their layout has not changed since its second version. 0 means
// success.
using NvmlDevice = struct NvmlDeviceOpaque*;
struct NvmlUtilization {
  unsigned gpu;  // per cent
  unsigned memory;
};
struct NvmlMemory {
  unsigned long long total;  // NOLINT(google-runtime-int): as there
  unsigned long long free;   // NOLINT(google-runtime-int)
  unsigned long long used;   // NOLINT(google-runtime-int)
};
constexpr int kNvmlTemperatureGpu = 0;

struct Nvml {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, NvmlDevice*);
  int (*uuid)(NvmlDevice, char*, unsigned);
  int (*utilization)(NvmlDevice, NvmlUtilization*);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*power)(NvmlDevice, unsigned*);  // milliwatts
  int (*temperature)(NvmlDevice, int, unsigned*);
};

template <typename Function>
bool Load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool LoadAll(void* library, Nvml& nvml) {
  return Load(library, "nvmlInit_v2", nvml.init) && Load(library, "nvmlShutdown", nvml.shutdown) &&
         Load(library, "nvmlDeviceGetCount_v2", nvml.count) &&
         Load(library, "nvmlDeviceGetHandleByIndex_v2", nvml.handle) &&
         Load(library, "nvmlDeviceGetUUID", nvml.uuid) &&
         Load(library, "nvmlDeviceGetUtilizationRates", nvml.utilization) &&
         Load(library, "nvmlDeviceGetMemoryInfo", nvml.memory) &&
         Load(library, "nvmlDeviceGetPowerUsage", nvml.power) &&
         Load(library, "nvmlDeviceGetTemperature", nvml.temperature);
}

class GpuMetrics : public prometheus::Collectable {
 public:
  explicit GpuMetrics(const Nvml& nvml) : nvml_(nvml) {
    unsigned count = 0;
    if (nvml_.count(&count) != 0) return;
    for (unsigned number = 0; number < count; ++number) {
      NvmlDevice handle = nullptr;
      char uuid[96] = "";
      if (nvml_.handle(number, &handle) != 0) continue;
      if (nvml_.uuid(handle, uuid, sizeof(uuid)) != 0) uuid[0] = 0;
      gpus_.push_back({handle, {{"gpu", absl::StrCat(number)}, {"uuid", uuid}}});
    }
  }
  ~GpuMetrics() override { nvml_.shutdown(); }

  std::vector<MetricFamily> Collect() const override {
    MetricFamily utilization =
        Family("muster_gpu_utilization_ratio",
               "Share of the last sample period in which a kernel ran, 0 to 1.");
    MetricFamily used = Family("muster_gpu_memory_used_bytes", "Memory in use by all processes.");
    MetricFamily size = Family("muster_gpu_memory_size_bytes", "Memory of the GPU.");
    MetricFamily power = Family("muster_gpu_power_watts", "Present power draw.");
    MetricFamily temperature =
        Family("muster_gpu_temperature_celsius", "Temperature of the GPU's core.");
    for (const Gpu& gpu : gpus_) {
      if (NvmlUtilization rates{}; nvml_.utilization(gpu.handle, &rates) == 0) {
        Add(utilization, gpu, rates.gpu / 100.0);
      }
      if (NvmlMemory memory{}; nvml_.memory(gpu.handle, &memory) == 0) {
        Add(used, gpu, static_cast<double>(memory.used));
        Add(size, gpu, static_cast<double>(memory.total));
      }
      if (unsigned milliwatts = 0; nvml_.power(gpu.handle, &milliwatts) == 0) {
        Add(power, gpu, milliwatts / 1000.0);
      }
      if (unsigned degrees = 0; nvml_.temperature(gpu.handle, kNvmlTemperatureGpu, &degrees) == 0) {
        Add(temperature, gpu, degrees);
      }
    }
    std::vector<MetricFamily> families = {utilization, used, size, power, temperature};
    std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
    return families;
  }

 private:
  struct Gpu {
    NvmlDevice handle;
    std::vector<ClientMetric::Label> labels;
  };

  static MetricFamily Family(const char* name, const char* help) {
    return {name, help, MetricType::Gauge, {}};
  }

  static void Add(MetricFamily& family, const Gpu& gpu, double value) {
    ClientMetric metric;
    metric.label = gpu.labels;
    metric.gauge.value = value;
    family.metric.push_back(metric);
  }

  const Nvml nvml_;
  std::vector<Gpu> gpus_;
};

}  // namespace

// The library is never unloaded: it is used as long as the process lives.
absl::StatusOr<std::shared_ptr<const prometheus::Collectable>> OpenGpuMetrics(
    const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  Nvml nvml{};
  if (loaded == nullptr || !LoadAll(loaded, nvml)) {
    const char* const why = dlerror();
    return absl::NotFoundError(absl::StrCat(library, ": ", why == nullptr ? "incomplete" : why));
  }
  if (const int code = nvml.init(); code != 0) {
    return absl::UnavailableError(
        absl::StrCat(library, ": no driver answers (NVML error ", code, ")"));
  }
  return std::make_shared<const GpuMetrics>(nvml);
}

}  // namespace muster
