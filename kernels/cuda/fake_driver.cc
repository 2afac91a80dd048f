// Replaces CUDA's driver while cuDNN prepares an attention: accepts the compiled kernels and
// remembers their names. It cannot run anything.
#include <cstddef>
#include <mutex>
#include <set>
#include <string>

namespace {

std::mutex mutex;
std::set<std::string>* const kernels = new std::set<std::string>;
int library, kernel;

}  // namespace

extern "C" {

// Returns whether a prepared kernel has both parts in its name.
bool PreparedKernel(const char* a, const char* b) {
  const std::lock_guard lock(mutex);
  for (const std::string& name : *kernels) {
    if (name.find(a) != std::string::npos && name.find(b) != std::string::npos) return true;
  }
  return false;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuLibraryLoadData(void** loaded, const void*, void*, void**, unsigned, void*, void**,
                      unsigned) {
  *loaded = &library;
  return 0;
}

int cuLibraryGetKernel(void** found, void*, const char* name) {
  const std::lock_guard lock(mutex);
  kernels->insert(name);
  *found = &kernel;
  return 0;
}

// Functions that cuDNN looks up but does not call before it runs a kernel.
#define SUCCEEDS(function) \
  int function() { return 0; }
SUCCEEDS(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuDeviceGetCount)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuGetErrorName)
SUCCEEDS(cuGetErrorString)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuKernelGetFunction)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLibraryLoadFromFile)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuStreamGetCtx)

}  // extern "C"
