// A fake management library with two GPUs. The second one reports neither power nor temperature.
#include <cstdio>

namespace {

constexpr int kNotSupported = 3;

char gpus[2];  // a handle points to its GPU

unsigned NumberOf(const void* handle) {
  return static_cast<unsigned>(static_cast<const char*>(handle) - gpus);
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = &gpus[index];
  return 0;
}

int nvmlDeviceGetUUID(void* handle, char* uuid, unsigned length) {
  std::snprintf(uuid, length, "GPU-%u", NumberOf(handle));
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* handle, unsigned* rates) {
  rates[0] = NumberOf(handle) == 0 ? 87 : 0;
  rates[1] = 1;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {  // NOLINT(google-runtime-int)
  memory[0] = 80'000'000'000;
  memory[1] = 50'000'000'000;
  memory[2] = 30'000'000'000;
  return 0;
}

int nvmlDeviceGetPowerUsage(void* handle, unsigned* milliwatts) {
  *milliwatts = 312'500;
  return NumberOf(handle) == 0 ? 0 : kNotSupported;
}

int nvmlDeviceGetTemperature(void* handle, int, unsigned* degrees) {
  *degrees = 61;
  return NumberOf(handle) == 0 ? 0 : kNotSupported;
}
}
