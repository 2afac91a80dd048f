// The threads that drive a worker's devices.
#pragma once

#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lib/collective/barrier.h"
#include "lib/log/log_scope.h"

namespace muster {

// A team has one thread per device. The threads sleep between tasks. Thread-compatible.
class DeviceTeam {
 public:
  using Task = absl::FunctionRef<absl::Status(int device)>;

  explicit DeviceTeam(int devices);
  ~DeviceTeam();

  // Runs `task` for all devices concurrently, each on its own thread. Blocks until all are done.
  // Returns the worst failure; of equally bad ones, that of the first device. From worst to least:
  // a lost device (reason "DEVICE_LOST"), any other error, ABORTED (the task was interrupted).
  absl::Status Run(Task task);

 private:
  void Drive(int device);

  std::vector<absl::Status> results_;
  const Task* task_ = nullptr;
  const LogScope* log_scope_ = nullptr;  // of the thread that calls Run()
  Barrier barrier_;                      // crossed before and after every task
  std::vector<std::jthread> threads_;
};

}  // namespace muster
