// The kernels of the CPU, in one table for all ops.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "lib/engine/cpu/cpu_layouts.h"
#include "lib/engine/kernel.h"

namespace muster {

// The input of a node's planner.
struct CpuNode : TypedNode {
  CpuLayouts& layout_table;
  int synchronised_devices;  // see Executor::Options

  int64_t elements(int input) const { return inputs[input].elements(); }
  // rows() is the product of all dimensions except the last; columns() is the last.
  int64_t rows(int input) const { return elements(input) / columns(input); }
  int64_t columns(int input) const { return inputs[input].shape.back(); }
};

struct CpuKernel {
  PlannedNode (*plan)(const CpuNode& node) = nullptr;
  // Whether the kernel takes bf16 and f16 tensors as they are. Other kernels compute only in f32.
  bool any_type = false;
};

using CpuKernelTable = absl::flat_hash_map<std::string, CpuKernel>;

// Each family adds its ops.
void AddMatrixKernels(CpuKernelTable& table);
void AddImageKernels(CpuKernelTable& table);
void AddNormalisationKernels(CpuKernelTable& table);
void AddElementwiseKernels(CpuKernelTable& table);
void AddReductionKernels(CpuKernelTable& table);
void AddShapeKernels(CpuKernelTable& table);
void AddSequenceKernels(CpuKernelTable& table);
void AddLossKernels(CpuKernelTable& table);
void AddCollectiveKernels(CpuKernelTable& table);

bool HasCpuKernel(absl::string_view op);

class CpuKernels : public KernelRegistry {
 public:
  explicit CpuKernels(int synchronised_devices = 1) : synchronised_devices_(synchronised_devices) {}

  absl::StatusOr<PlannedNode> Plan(const TypedNode& node) override;
  absl::StatusOr<PlannedNode> PlanReorder(const TensorType& type, Layout from, Layout to) override;
  int64_t Bytes(const TensorType& type, Layout layout) override;

 private:
  PlannedNode Plan(absl::string_view op, const TypedNode& node);
  PlannedNode PlanNarrowAddLayerNorm(const TypedNode& node);

  const int synchronised_devices_;
  CpuLayouts layouts_;
};

}  // namespace muster
