// A graph on a device, with memory for its parameters, gradients and inputs. For tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/engine/reference/reference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {

// Returns the device that tests run on: MUSTER_DEVICE, or "cpu".
std::string TestedDevice();

class Instance {
 public:
  struct Options {
    int64_t batch = 1;
    bool micro_batches = false;
    int threads = 1;
    const Instance* memory_of = nullptr;  // shares the parameters, gradients and device of this one
    // This and the next two: see Executor::Options.
    int synchronised_devices = 1;
    std::vector<absl::Span<const kernels::ByteValues>> row_values = {};
    std::vector<bool> narrow_parameters = {};
    std::string device = TestedDevice();
  };

  // Returns the errors of CreateDevice, ModelMemory::Create and CreateExecutor.
  static absl::StatusOr<std::unique_ptr<Instance>> Create(v1::Graph graph, const Options& options);

  // Set parameters and inputs by name. Tensors that the graph does not have are ignored.
  void Set(const reference::Tensors& given);
  void SetParameters(const reference::Tensors& given);
  void SetInput(absl::string_view name, absl::Span<const double> values);

  absl::Status Run(const RunArguments& arguments = {}, ParameterFlow* flow = nullptr);

  std::vector<double> Output(absl::string_view name) const;
  std::vector<double> Gradient(absl::string_view parameter) const;
  double loss() const { return Output(graph_.loss())[0]; }

  const v1::Graph& graph() const { return graph_; }
  Executor& executor() { return *executor_; }
  Device& device() { return *device_; }
  int64_t arena_bytes() const { return executor_->arena_bytes(); }

 private:
  Instance(v1::Graph graph, std::shared_ptr<Device> device,
           std::shared_ptr<const ModelMemory> memory, std::vector<bool> narrow_parameters);

  const v1::Graph graph_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const ModelMemory> memory_;
  const std::vector<bool> narrow_parameters_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace muster::verification
