// One GPU: its streams, the library handles, and device copies of host memory that executors share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/type.h"
#include "lib/engine/cuda/cuda_handles.h"
#include "lib/engine/cuda/host_mirrors.h"
#include "lib/engine/device.h"
#include "lib/graph/tensor_parallel/placement.h"

namespace muster {

class CudaDevice : public Device {
 public:
  // Opens visible GPU `number`. Returns UNAVAILABLE with the reason if there is none.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int number);
  ~CudaDevice() override;

  std::string name() const override;
  Kind kind() const override { return Kind::kCuda; }
  std::string description() const override;
  std::string exact_kind() const override;
  int64_t available_bytes() const override;
  absl::StatusOr<Memory> Allocate(size_t bytes, absl::string_view what) override;
  absl::StatusOr<std::shared_ptr<void>> PageLock(absl::Span<std::byte> memory) override;
  absl::Status Use() const override { return Drive(); }
  absl::Status PlaceNearby() override;

  // Makes the calling thread drive this device: its CUDA calls go there. Cheap. Returns INTERNAL,
  // reason "DEVICE_LOST", if the process has lost the device.
  absl::Status Drive() const;

  // Call after an error. Returns whether the error is permanent, so that the device is unusable.
  // Requires: no stream is being captured.
  bool IsLost() const;

  // True while an executor's run is in progress: errors on the device belong to that run.
  bool is_running() const { return is_running_; }
  void set_running(bool running) { is_running_ = running; }

  // Marks the device as lost: later jobs of this process are refused the device. Returns the error
  // for the job that is running.
  absl::Status Lose(absl::string_view why) const;

  // Work in different streams overlaps. compute() runs nodes, upload() brings parameters in, rows()
  // brings the next run's rows in, download() sends gradients out. collective() runs the collective
  // operations of a worker's GPUs.
  cudaStream_t compute() const { return compute_.get(); }
  cudaStream_t upload() const { return upload_.get(); }
  cudaStream_t rows() const { return rows_.get(); }
  cudaStream_t download() const { return download_.get(); }
  cudaStream_t collective() const { return collective_.get(); }
  cublasLtHandle_t cublas() const { return cublas_.get(); }
  cudnnHandle_t cudnn() const { return cudnn_.get(); }

  // Returns the device memory that mirrors `slice` of the tensor at `host`. All executors of the
  // device that ask for the same slice, type and size share it while one of them lives. New memory
  // is zeroed. Requires: host memory that no device has allocated outlives the executors.
  absl::StatusOr<std::shared_ptr<std::byte[]>> Mirror(const void* host, const ParameterSlice& slice,
                                                      kernels::cuda::Type type, int64_t bytes);
  // Makes `memory` the mirror that Mirror() returns from now on.
  void ShareMirror(const void* host, const ParameterSlice& slice, kernels::cuda::Type type,
                   int64_t bytes, const std::shared_ptr<std::byte[]>& memory) {
    mirrors_.Insert(host, slice, type, bytes, memory);
  }

 private:
  CudaDevice(int number, std::string description);
  absl::Status Open();

  const int number_;
  const std::string description_;
  CudaStream compute_, upload_, rows_, download_, collective_;
  CublasHandle cublas_;
  CudnnHandle cudnn_;
  HostMirrors mirrors_;
  bool is_running_ = false;
};

}  // namespace muster
