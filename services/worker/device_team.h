// The threads that drive a worker's devices.
#pragma once

#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lib/collective/barrier.h"
#include "lib/log/log_scope.h"

namespace muster {

// One thread per device, always the same one, asleep between tasks. Thread-compatible.
class DeviceTeam {
 public:
  using Task = absl::FunctionRef<absl::Status(int device)>;

  explicit DeviceTeam(int devices);
  ~DeviceTeam();

  // Runs `task` for every device at once, each on its thread, and waits for all. The first failure
  // in device order; that of a device that is lost (reason "DEVICE_LOST") before any other, ABORTED
  // (interrupted) only when nothing worse happened.
  absl::Status Run(Task task);

 private:
  void Drive(int device);

  std::vector<absl::Status> results_;
  const Task* task_ = nullptr;
  const LogScope* log_scope_ = nullptr;  // of the thread that runs the task
  Barrier barrier_;                      // met before and after every task
  std::vector<std::jthread> threads_;
};

}  // namespace muster
