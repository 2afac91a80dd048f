// One GPU: its streams, the libraries' handles, and copies of host memory that executors share.
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

namespace muster {

class CudaDevice : public Device {
 public:
  // GPU `number` of those visible. UNAVAILABLE with the reason when there is none such.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int number);
  ~CudaDevice() override;

  std::string name() const override;
  Kind kind() const override { return Kind::kCuda; }
  std::string description() const override;
  int64_t available_bytes() const override;
  absl::StatusOr<Memory> Allocate(size_t bytes, absl::string_view what) override;
  absl::StatusOr<std::shared_ptr<void>> PageLock(absl::Span<std::byte> memory) override;
  absl::Status Use() const override { return Drive(); }

  // Makes the calling thread the one that drives the device: what it enqueues goes there. Cheap.
  // INTERNAL, reason "DEVICE_LOST", once the process has lost the device.
  absl::Status Drive() const;

  // After an error: whether it stays, so that nothing can be done on the device any more. No stream
  // is being captured.
  bool IsLost() const;

  // While an executor's run is under way: errors on the device are that run's.
  bool is_running() const { return is_running_; }
  void set_running(bool running) { is_running_ = running; }

  // It is: every later job of this process is refused the device. The error for the job that runs.
  absl::Status Lose(absl::string_view why) const;

  // Work in different streams overlaps: nodes; parameters on their way in; rows of the next run on
  // theirs; gradients on their way out; what the GPUs of a worker do together.
  cudaStream_t compute() const { return compute_.get(); }
  cudaStream_t upload() const { return upload_.get(); }
  cudaStream_t rows() const { return rows_.get(); }
  cudaStream_t download() const { return download_.get(); }
  cudaStream_t collective() const { return collective_.get(); }
  cublasLtHandle_t cublas() const { return cublas_.get(); }
  cudnnHandle_t cudnn() const { return cudnn_.get(); }

  // Device memory that stands for `host`: all executors of the device that ask for the same host
  // memory in the same type and size share it, for as long as one of them lives. Zeroed when new.
  // Memory that no device has allocated must outlive them.
  absl::StatusOr<std::shared_ptr<std::byte[]>> Mirror(const void* host, kernels::cuda::Type type,
                                                      int64_t bytes);

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
