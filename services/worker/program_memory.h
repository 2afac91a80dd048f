// The memory that a program shares with its worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/core/shared_slab.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Three slabs of one layout, f32: gradients, values of even versions, values of odd versions. Every
// tensor is 64-byte aligned. Other processes may write to all of them.
class ProgramMemory {
 public:
  // Returns RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if the host has too little memory.
  static absl::StatusOr<std::unique_ptr<ProgramMemory>> Create(const v1::JobPlan& plan);

  int64_t elements() const { return elements_; }                    // of each slab
  const std::vector<int64_t>& offsets() const { return offsets_; }  // by parameter, in elements
  std::vector<absl::Span<float>> gradients() const { return Tensors(0); }
  std::vector<absl::Span<float>> values(int64_t version) const {
    return Tensors(1 + (version & 1));
  }
  std::vector<absl::Span<std::byte>> memory() const;
  // Copies the parameter's values of `version` to those of versions of the other parity.
  void CopyToOtherParity(int parameter, int64_t version) const;
  // Returns descriptors of the files, in the order above.
  absl::StatusOr<std::vector<FileDescriptor>> Files() const;

 private:
  ProgramMemory() = default;
  absl::Span<float> Tensor(int64_t slab, int parameter) const;
  std::vector<absl::Span<float>> Tensors(int64_t slab) const;

  std::vector<int64_t> offsets_, sizes_;  // by parameter
  int64_t elements_ = 0;
  std::vector<std::shared_ptr<SharedSlab>> slabs_;
};

// Returns whether the learning rate of the job file changes with the step.
bool HasSchedule(const v1::TrainingSpec& training);

// Returns the body of WELCOME for this worker of the plan.
std::string WelcomeBody(const v1::JobPlan& plan, const std::string& member,
                        const ProgramMemory& memory);

}  // namespace muster
