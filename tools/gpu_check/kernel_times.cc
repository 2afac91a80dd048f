// A library that CUDA's driver loads into a program (CUDA_INJECTION64_PATH). It records when each
// kernel, copy and fill of the program ran on the GPU, also inside graphs. Each is a line of the
// file that MUSTER_KERNEL_TIMES names: start and duration in nanoseconds, stream and name,
// separated by tabs. The program need not be changed. Records come from CUPTI's activity interface
// (docs.nvidia.com/cupti, "CUPTI Activity API"), whose library is loaded when the program first
// uses CUDA.

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

// Valid from InitializeInjection() on.
struct {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityGetNextRecord) next_record;
  decltype(&cuptiActivityFlushAll) flush;
} cupti;
FILE* file;

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

void RequestBuffer(uint8_t** buffer, size_t* bytes, size_t* records_max) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *records_max = 0;  // as many as fit
}

void Write(uint64_t start, uint64_t end, uint32_t stream, const char* name) {
  std::fprintf(file, "%llu\t%llu\t%u\t%s\n", static_cast<unsigned long long>(start),
               static_cast<unsigned long long>(end - start), stream, name);
}

void WriteKernel(const CUpti_ActivityKernel10& kernel) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(kernel.name, nullptr, nullptr, &status);
  Write(kernel.start, kernel.end, kernel.streamId, status == 0 ? demangled : kernel.name);
  std::free(demangled);
}

// CUPTI calls this from one thread at a time.
void CompleteBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t bytes) {
  CUpti_Activity* record = nullptr;
  while (cupti.next_record(buffer, bytes, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        WriteKernel(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        const char* name =
            copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "[copy host to device]"
            : copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "[copy device to host]"
                                                               : "[copy]";
        Write(copy.start, copy.end, copy.streamId, name);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        Write(fill.start, fill.end, fill.streamId, "[fill]");
        break;
      }
      default:
        break;
    }
  }
  std::free(buffer);
}

void Finish() {
  cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  if (std::fclose(file) != 0) std::perror("kernel_times: MUSTER_KERNEL_TIMES");
}

bool Start() {
  const char* path = std::getenv("MUSTER_KERNEL_TIMES");
  if (path == nullptr) {
    std::fputs("kernel_times: MUSTER_KERNEL_TIMES names no file\n", stderr);
    return false;
  }
  void* library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "kernel_times: %s\n", dlerror());
    return false;
  }
  if (!Find(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks) ||
      !Find(library, "cuptiActivityEnable", cupti.enable) ||
      !Find(library, "cuptiActivityGetNextRecord", cupti.next_record) ||
      !Find(library, "cuptiActivityFlushAll", cupti.flush)) {
    std::fputs("kernel_times: libcupti.so.13 lacks a function\n", stderr);
    return false;
  }
  file = std::fopen(path, "w");
  if (file == nullptr) {
    std::perror("kernel_times: MUSTER_KERNEL_TIMES");
    return false;
  }
  if (cupti.register_callbacks(RequestBuffer, CompleteBuffer) != CUPTI_SUCCESS ||
      cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
      cupti.enable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS ||
      cupti.enable(CUPTI_ACTIVITY_KIND_MEMSET) != CUPTI_SUCCESS) {
    std::fputs("kernel_times: CUPTI refuses; another profiler may be there\n", stderr);
    return false;
  }
  std::atexit(Finish);
  return true;
}

}  // namespace

// Called by the driver during the program's first CUDA call. Returns 1 if the library is in use.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  return Start() ? 1 : 0;
}
