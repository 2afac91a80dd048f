#include "lib/engine/cuda/cuda_device.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "kernels/cuda/libraries.h"
#include "lib/concurrency/numa_node.h"
#include "lib/engine/cuda/cuda_backend.h"
#include "lib/engine/cuda/cuda_kernels.h"
#include "lib/engine/cuda/device_faults.h"
#include "lib/engine/host_memory.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kComputeCapabilityMin = 8;  // the kernels need bf16 and asynchronous copies

// Returns the page-locked host memory of this process. All devices share the record, because they
// share host memory.
HostAllocations& PageLocked() {
  // Never destroyed: memory may be freed after main().
  static auto& allocations = *new HostAllocations;
  return allocations;
}

// Returns the record of lost GPUs. There is one per process, because CUDA's contexts belong to the
// process.
DeviceFaults& Faults() {
  static auto& faults = *new DeviceFaults;
  return faults;
}

std::string NameOf(int number) { return absl::StrCat("cuda:", number); }

absl::Status FailedToOpen(absl::string_view library, absl::string_view words, bool lacks_memory) {
  const std::string message = absl::StrCat(library, ": ", words);
  return lacks_memory ? WithReason(absl::ResourceExhaustedError(message), "MEMORY_EXHAUSTED")
                      : absl::InternalError(message);
}

absl::Status StatusOfCudnn(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return FailedToOpen("cuDNN", cudnnGetErrorString(status), status == CUDNN_STATUS_ALLOC_FAILED);
}

absl::Status StatusOfCublas(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return FailedToOpen("cuBLASLt", cublasLtGetStatusString(status),
                      status == CUBLAS_STATUS_ALLOC_FAILED);
}

}  // namespace

absl::StatusOr<int> CountCudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("no GPU is visible (", cudaGetErrorString(error), ")"));
  }
  if (count == 0) return absl::UnavailableError("no GPU is visible");
  if (cuda::Failure failure = cuda::LoadLibraries()) {
    return absl::UnavailableError(
        absl::StrCat("the GPU's libraries cannot be loaded (", failure, ")"));
  }
  return count;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int number) {
  RETURN_IF_ERROR(Faults().Check(NameOf(number)));
  ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  if (number >= count) {
    return absl::UnavailableError(absl::StrCat("device 'cuda:", number, "': ", count,
                                               count == 1 ? " GPU is" : " GPUs are", " visible"));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(StatusOf(cudaGetDeviceProperties(&properties, number)));
  const std::string description =
      absl::StrCat(properties.name, ", sm_", properties.major, properties.minor, ", ",
                   properties.totalGlobalMem >> 30, " GiB");
  if (properties.major < kComputeCapabilityMin) {
    return absl::UnavailableError(absl::StrCat("device 'cuda:", number, "' (", description,
                                               ") is older than sm_", kComputeCapabilityMin, "0"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(number, description));
  RETURN_IF_ERROR(device->Open());
  return device;
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int number) {
  return CudaDevice::Create(number);
}

CudaDevice::CudaDevice(int number, std::string description)
    : number_(number), description_(std::move(description)), mirrors_(&PageLocked()) {}

absl::Status CudaDevice::Open() {
  RETURN_IF_ERROR(StatusOf(cudaSetDevice(number_)));
  ASSIGN_OR_RETURN(compute_, CreateCudaStream());
  ASSIGN_OR_RETURN(upload_, CreateCudaStream());
  ASSIGN_OR_RETURN(rows_, CreateCudaStream());
  ASSIGN_OR_RETURN(collective_, CreateCudaStream());
  ASSIGN_OR_RETURN(download_, CreateCudaStream());
  cublasLtHandle_t cublas;
  RETURN_IF_ERROR(StatusOfCublas(cublasLtCreate(&cublas)));
  cublas_.reset(cublas);
  cudnnHandle_t cudnn;
  RETURN_IF_ERROR(StatusOfCudnn(cudnnCreate(&cudnn)));
  cudnn_.reset(cudnn);
  return StatusOfCudnn(cudnnSetStream(cudnn, compute()));
}

absl::Status CudaDevice::PlaceNearby() {
  RETURN_IF_ERROR(Drive());
  ASSIGN_OR_RETURN(collective_, CreateUrgentCudaStream());
  char bus_id[32] = {};
  RETURN_IF_ERROR(StatusOf(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), number_)));
  ASSIGN_OR_RETURN(const std::vector<int> cpus, CpusNextTo(bus_id));
  return BindThreadTo(cpus);
}

// Handles must be destroyed on the device where they were created. On a lost device the call only
// returns an error.
CudaDevice::~CudaDevice() { cudaSetDevice(number_); }

std::string CudaDevice::name() const { return NameOf(number_); }

std::string CudaDevice::description() const { return description_; }

std::string CudaDevice::exact_kind() const {
  return absl::StrCat(description_, ", cuBLAS ", cublasLtGetVersion(), ", cuDNN ",
                      cudnnGetVersion());
}

absl::Status CudaDevice::Drive() const {
  RETURN_IF_ERROR(Faults().Check(name()));
  const cudaError_t error = cudaSetDevice(number_);
  if (error == cudaSuccess || !IsLost()) return StatusOf(error);
  return Lose(absl::StrCat("CUDA: ", cudaGetErrorString(error), ", when nothing was running"));
}

// Reads the error of the last call, then queries a stream. CUDA clears the error of a refused call
// when it is read, but every later call returns a permanent error again.
bool CudaDevice::IsLost() const {
  cudaGetLastError();
  const cudaError_t error = cudaStreamQuery(compute());
  return error != cudaSuccess && error != cudaErrorNotReady;
}

absl::Status CudaDevice::Lose(absl::string_view why) const { return Faults().Lose(name(), why); }

int64_t CudaDevice::available_bytes() const {
  if (!Drive().ok()) return 0;
  size_t available = 0, total = 0;
  return cudaMemGetInfo(&available, &total) == cudaSuccess ? static_cast<int64_t>(available) : 0;
}

absl::StatusOr<Device::Memory> CudaDevice::Allocate(size_t bytes, absl::string_view what) {
  constexpr absl::string_view kKind = "page-locked memory";
  // The record is removed first, before another allocation can get the address.
  const auto release = [](std::byte* p) {
    if (CudaResourcesAreKept()) return;
    PageLocked().Remove(p);
    cudaFreeHost(p);
  };
  // Allows one allocation at a time: AvailableHostBytes() counts memory as used only after it is
  // locked.
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  absl::MutexLock lock(&mu);
  const int64_t available = AvailableHostBytes();
  if (bytes > static_cast<size_t>(available)) {
    return MemoryExhausted(what, static_cast<int64_t>(bytes), kKind, available);
  }
  RETURN_IF_ERROR(Drive());
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes + 1, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear the error, so that the next call does not return it
    return MemoryExhausted(what, static_cast<int64_t>(bytes), kKind, available);
  }
  RETURN_IF_ERROR(StatusOf(error));
  std::memset(memory, 0, bytes);
  PageLocked().Add(memory, static_cast<int64_t>(bytes + 1));
  return Memory(static_cast<std::byte*>(memory), release);
}

absl::StatusOr<std::shared_ptr<void>> CudaDevice::PageLock(absl::Span<std::byte> memory) {
  if (memory.empty()) return nullptr;
  RETURN_IF_ERROR(Drive());
  const cudaError_t error =
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  // Clear the error, so that the next call does not return it.
  if (error != cudaSuccess) cudaGetLastError();
  RETURN_IF_ERROR(StatusOf(error));
  PageLocked().Add(memory.data(), static_cast<int64_t>(memory.size()));
  return std::shared_ptr<void>(memory.data(), [](void* p) {
    if (CudaResourcesAreKept()) return;
    PageLocked().Remove(p);
    cudaHostUnregister(p);
  });
}

absl::StatusOr<std::shared_ptr<std::byte[]>> CudaDevice::Mirror(const void* host,
                                                                const ParameterSlice& slice,
                                                                cuda::Type type, int64_t bytes) {
  if (std::shared_ptr<std::byte[]> shared = mirrors_.Find(host, slice, type, bytes)) return shared;
  ASSIGN_OR_RETURN(CudaMemory memory, AllocateCudaMemory(bytes, "parameters and gradients"));
  RETURN_IF_ERROR(
      StatusOf(cudaMemsetAsync(memory.get(), 0, static_cast<size_t>(bytes), compute())));
  std::shared_ptr<std::byte[]> shared = std::move(memory);
  mirrors_.Insert(host, slice, type, bytes, shared);
  return shared;
}

}  // namespace muster
